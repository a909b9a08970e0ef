// The loop's surroundings in memory. They write what happens to one trace, in order, so that tests
// can see what came first.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "coordinator/runtime/launcher.h"
#include "coordinator/runtime/links.h"
#include "coordinator/runtime/memory_journal.h"

namespace espalier {

using Trace = std::vector<std::string>;

class HandClock : public Clock {
 public:
  absl::Time Now() override { return absl::FromUnixSeconds(1700000000) + passed_; }
  absl::Duration Monotonic() override { return passed_; }
  void Sleep(absl::Duration duration) override {
    passed_ += duration;
    if (on_sleep) on_sleep();
  }
  void Advance(absl::Duration duration) { passed_ += duration; }
  std::function<void()> on_sleep;

 private:
  absl::Duration passed_;
};

// A journal that can be full.
class TracedJournal : public MemoryJournal {
 public:
  explicit TracedJournal(Trace& trace) : trace_(trace) {}
  absl::Status Commit(const JournalBatch& batch) override {
    if (full) return absl::ResourceExhaustedError("disk full");
    std::string what = "journal";
    for (const EventRow& row : batch.events) absl::StrAppend(&what, " state ", row.state);
    for (const LaunchRow& row : batch.launches) absl::StrAppend(&what, " pid ", row.process.pid);
    for (const LaunchKey& key : batch.ended_launches) {
      absl::StrAppend(&what, " ended ", key.generation.value());
    }
    trace_.push_back(what);
    return MemoryJournal::Commit(batch);
  }
  bool full = false;

 private:
  Trace& trace_;
};

class FakeLauncher : public Launcher {
 public:
  explicit FakeLauncher(Trace& trace) : trace_(trace) {}
  absl::StatusOr<ProcessIdentity> Prepare(const LaunchRequest& request) override {
    if (!refusal.ok()) return refusal;
    trace_.push_back(absl::StrCat("prepare ", request.generation.value()));
    return ProcessIdentity{1000 + request.generation.value(), "start"};
  }
  void Release(const LaunchKey& key) override {
    trace_.push_back(absl::StrCat("release ", key.generation.value()));
  }
  void Adopt(const LaunchRow& row) override {
    trace_.push_back(absl::StrCat("adopt ", row.generation.value(), " pid ", row.process.pid));
  }
  void NoteWorker(const LaunchKey&, const WorkerProcess& worker) override {
    trace_.push_back(absl::StrCat("worker ", worker.node.text(), " pid ", worker.pid));
  }
  void End(const LaunchKey& key) override {
    trace_.push_back(absl::StrCat("end ", key.generation.value()));
  }
  std::vector<LaunchEnded> Poll(absl::Duration) override { return std::exchange(ended, {}); }

  absl::Status refusal;
  std::vector<LaunchEnded> ended;

 private:
  Trace& trace_;
};

class FakeLinks : public WorkerLinks {
 public:
  explicit FakeLinks(Trace& trace) : trace_(trace) {}
  void Send(LinkId link, v1::AttachResponse message) override {
    trace_.push_back(absl::StrCat(message.has_welcome() ? "welcome " : "directive ", link.value()));
    last[link] = std::move(message);
  }
  void Close(LinkId link, const absl::Status& status) override {
    trace_.push_back(
        absl::StrCat("close ", link.value(), " ", absl::StatusCodeToString(status.code())));
  }
  std::map<LinkId, v1::AttachResponse> last;

 private:
  Trace& trace_;
};

}  // namespace espalier
