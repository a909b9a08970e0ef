// What a simulated generation is started with. Used by tests/sim. Plain values: any thread.
#pragma once

#include <string>
#include <vector>

#include "common/base/ids.h"
#include "espalier/v1/job.pb.h"

namespace espalier::sim {

struct WorldOptions {
  GenerationKey key;
  std::vector<NodeName> nodes;
  v1::JobSpec spec;
  // Of a hand-started world; the job is learnt from the welcome then.
  std::string external_id;
};

}  // namespace espalier::sim
