// StandaloneLink: the ControlLink of a worker without coordinator. Its directive is to run to the
// end with the even plan it is given; reports become log lines.
// Used by worker/run.cc and tests. Thread-safe, as ControlLink says.
#pragma once

#include <memory>

#include "common/base/clock.h"
#include "worker/control/link.h"

namespace espalier {

struct StandaloneOptions {
  // What Attach answers: the spec, the checkpoint folder, and the directive to obey.
  v1::Welcome welcome;
  // Least time between two log lines about steps; evaluations and checkpoints are always logged.
  absl::Duration log_interval = absl::Seconds(5);
};

std::unique_ptr<ControlLink> MakeStandaloneLink(StandaloneOptions options, Clock& clock);

}  // namespace espalier
