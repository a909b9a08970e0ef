// SimDisk: the disk of the simulated coordinator's journal. Holds rows as bytes, as SQLite would,
// and beside them what they say, for the rules. May be slow, or full for a while. Used by
// sim_coordinator.h. One thread.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "coordinator/journal/journal.h"
#include "tests/sim/scene.h"
#include "tests/sim/sim_journal.h"

namespace espalier::sim {

class SimDisk : public Journal {
 public:
  struct Hooks {
    // The disk takes its time; false: espalierd has died before anything was written.
    std::function<bool()> write;
    // About to be written, and written.
    std::function<void(const std::vector<Effect>&)> writing;
    std::function<void()> written;
  };
  SimDisk(Scene& scene, Hooks hooks) : scene_(scene), hooks_(std::move(hooks)) {}

  absl::StatusOr<JournalContents> Load() override { return rows_.Load(); }
  absl::Status Commit(const JournalBatch& batch) override;
  absl::StatusOr<std::vector<EventRow>> Events(const EventQuery& query) override {
    return rows_.Events(query);
  }
  // Nothing can be written for so long.
  void Fill(absl::Duration time) { full_until_ = scene_.timeline.now() + time; }
  // What the rows say.
  const SimJournal& contents() const { return contents_; }

 private:
  void Note(const JournalBatch& batch, const std::vector<Effect>& effects);

  Scene& scene_;
  const Hooks hooks_;
  MemoryJournal rows_;
  SimJournal contents_;
  absl::Time full_until_ = absl::InfinitePast();
};

}  // namespace espalier::sim
