// StandaloneClient: the ControlClient of a worker without coordinator. Its directive is to run to
// the end with the plan it is given; reports go nowhere (the trainer logs what a person wants to
// see). Used by worker/run.cc and tests. Thread-safe, as ControlClient says.
#pragma once

#include <memory>

#include "common/base/clock.h"
#include "worker/control/control_client.h"

namespace espalier {

struct StandaloneOptions {
  // What Attach answers: the spec, the checkpoint folder, and the directive to obey.
  v1::Welcome welcome;
};

std::unique_ptr<ControlClient> MakeStandaloneClient(StandaloneOptions options, Clock& clock);

}  // namespace espalier
