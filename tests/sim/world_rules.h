// Rules that compare what simulated processes do with what the coordinator knows of them: who is
// silent is noticed in time, and no generation begins with less than was published. Used by
// inspector.cc. Pure functions.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/core/state.h"
#include "tests/sim/scene.h"
#include "tests/sim/sim_journal.h"
#include "tests/sim/world.h"

namespace espalier::sim {

// Empty, or which rank has said nothing for so long that its generation should be ending: its
// failure_timeout, and what messages may be late; or which generation has been starting for longer
// than it may. The coordinator has been kept from listening by nothing since `listening_since`,
// after which ranks may have a moment to come back, and looks every `tick`.
struct Watch {
  absl::Time now;
  absl::Time listening_since;
  absl::Duration tick;
  // When the generations were decided upon.
  const std::map<GenerationKey, absl::Time>& begun;
};
std::string FindUnnoticed(const ClusterState& state,
                          const std::vector<std::unique_ptr<World>>& worlds, const Watch& watch);

// Empty, or which published step the world, which is about to begin, goes back behind. What turned
// out to be damaged is no loss, nor what an operator has done without.
std::string FindLostStep(const World& world, const SimJournal& journal, const Scene& scene);

}  // namespace espalier::sim
