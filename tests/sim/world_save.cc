// The checkpoints of a simulated world: each rank whose part it is writes by itself, in its own
// time, and publishes what is whole. Steps go on beside it, but where somebody waits for it.
#include <algorithm>

#include "tests/sim/world.h"

namespace espalier::sim {

Step& World::DiskOf(size_t rank) { return scene_.disks[job()][options_.nodes[rank]]; }

void World::Save(void (World::*then)()) {
  phase_ = Phase::kCheckpoint;
  saved_ = then;
  if (!beside_) BeginCopies();
  After(scene_.chance.Milliseconds(10, 60), &World::AwaitCopies);
}

void World::SaveBeside() {
  if (beside_) return Save(&World::SaveBeside);
  BeginCopies();
  beside_ = true;
  Boundary();
}

void World::BeginCopies() {
  ++saves_;
  saved_step_ = step_;
  const auto copies = static_cast<size_t>(options_.spec.checkpoint().copies());
  copies_.assign(std::min(copies, size()), Copy{});
  for (size_t rank = 0; rank < copies_.size(); ++rank) {
    const absl::Duration time = scene_.Fault(25) ? scene_.chance.Milliseconds(500, 15000)
                                                 : scene_.chance.Milliseconds(1, 60);
    scene_.timeline.After(time, [this, rank, save = saves_] { Publish(rank, save); });
  }
}

// What a process that ended meanwhile had written is torn, which nobody takes for a checkpoint.
void World::Publish(size_t rank, int64_t save) {
  const RankProcess& process = *ranks_[rank];
  if (process.dead() || process.finished() || save != saves_) return;
  if (!process.moves() || scene_.timeline.now() > process.lease_until()) {
    scene_.timeline.After(absl::Milliseconds(100), [this, rank, save] { Publish(rank, save); });
    return;
  }
  Copy& copy = copies_[rank];
  copy.done = true;
  if (scene_.DiskFull(options_.nodes[rank]) || scene_.Fault(30)) {
    copy.error = "disk full";
    return;
  }
  hooks_.publishing(*this, rank);
  DiskOf(rank) = std::max(DiskOf(rank), saved_step_);
  Step& seen = scene_.seen[job()][options_.nodes[rank]];
  seen = std::max(seen, saved_step_);
}

void World::AwaitCopies() {
  ++collective_;
  if (!AllCopied()) return After(absl::Milliseconds(100), &World::AwaitCopies);
  TellOfCopies();
  (this->*saved_)();
}

void World::NoteBeside() {
  if (beside_ && AllCopied()) TellOfCopies();
}

bool World::AllCopied() const {
  return std::all_of(copies_.begin(), copies_.end(), [](const Copy& copy) { return copy.done; });
}

void World::TellOfCopies() {
  beside_ = false;
  for (size_t rank = 0; rank < copies_.size(); ++rank) {
    ranks_[rank]->SayCheckpoint(saved_step_, copies_[rank].error);
  }
}

bool World::Saved() const {
  return std::any_of(copies_.begin(), copies_.end(),
                     [](const Copy& copy) { return copy.done && copy.error.empty(); });
}

// Whoever leaves for good does so with its state on a disk, or is told to go without.
void World::LeaveStopped() {
  if (!Saved()) return After(scene_.chance.Milliseconds(100, 400), &World::Boundary);
  GiveBackMemory(Whose::kOfWriters);
  Leave(Outcome::kStopped, "as asked");
}

void World::LeaveCompleted() {
  if (!Saved()) return After(scene_.chance.Milliseconds(100, 400), &World::Boundary);
  GiveBackMemory(Whose::kOfAll);
  Leave(Outcome::kCompleted, "");
}

}  // namespace espalier::sim
