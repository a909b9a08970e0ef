// What of a generation outlives its processes in the memory of their nodes.
#include <algorithm>

#include "tests/sim/world.h"

namespace espalier::sim {

void World::TakeMemory(size_t rank) {
  const std::optional<int64_t> history = ranks_[rank]->history();
  if (!history) return;
  keeps_[rank] = scene_.memories.Take(job(), options_.nodes[rank], *history, generation());
  if (!keeps_[rank]) unharmed_ = false;  // a stray has it
}

Step World::MemoryOf(size_t rank) const {
  return keeps_[rank] ? scene_.memories.At(job(), options_.nodes[rank]) : Step(0);
}

void World::Remember(Step step) {
  for (size_t i = 0; i < size(); ++i) {
    if (keeps_[i]) scene_.memories.Keep(job(), options_.nodes[i], step);
  }
}

// It is in a checkpoint: of those that are not written there, an agent gives it back.
void World::GiveBackMemory(Whose whose) {
  for (size_t i = 0; i < size(); ++i) {
    const bool written = i < copies_.size() && copies_[i].error.empty();
    if (!keeps_[i] || (whose == Whose::kOfWriters && !written)) continue;
    scene_.memories.GiveBack(job(), options_.nodes[i]);
    keeps_[i] = false;
  }
}

// The step at hand may be finished on this node and not on others: its sums were there in time, and
// whoever takes the memory next finishes the update.
void World::LetGoOfMemory(size_t rank) {
  if (!keeps_[rank]) return;
  keeps_[rank] = false;
  if (stage_ == Stage::kTraining && phase_ == Phase::kExchange && scene_.Fault(6)) {
    scene_.memories.Keep(job(), options_.nodes[rank], step_.next());
    scene_.committed[job()] = std::max(scene_.committed[job()], step_.next());
  }
  scene_.memories.LetGo(job(), options_.nodes[rank]);
}

}  // namespace espalier::sim
