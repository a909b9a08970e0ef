// The loop's surroundings in memory. They write what happens to one trace, in order, so that tests
// can see what came first. Used by loop_world.h.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "coordinator/core/facts.h"
#include "coordinator/journal/journal.h"
#include "coordinator/launcher/launcher.h"
#include "coordinator/loop/outlets.h"

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

// A journal that can be full, or fail otherwise.
class TracedJournal : public MemoryJournal {
 public:
  explicit TracedJournal(Trace& trace) : trace_(trace) {}
  absl::Status Commit(const JournalBatch& batch) override {
    if (full) return absl::ResourceExhaustedError("disk full");
    if (!failure.ok()) return failure;
    std::string what = "journal";
    for (const EventRow& row : batch.events) absl::StrAppend(&what, " state ", row.state);
    for (const LaunchRow& row : batch.launches) absl::StrAppend(&what, " pid ", row.process.pid);
    for (const GenerationKey& key : batch.ended_launches) {
      absl::StrAppend(&what, " ended ", key.generation.value());
    }
    trace_.push_back(what);
    return MemoryJournal::Commit(batch);
  }
  bool full = false;
  absl::Status failure;

 private:
  Trace& trace_;
};

class FakeLauncher : public Launcher {
 public:
  explicit FakeLauncher(Trace& trace) : trace_(trace) {}
  absl::StatusOr<ProcessIdentity> Prepare(const LaunchRequest& request) override {
    if (!refusal.ok()) return refusal;
    trace_.push_back(absl::StrCat("prepare ", request.key.generation.value()));
    return ProcessIdentity{1000 + request.key.generation.value(), "start"};
  }
  void Release(const GenerationKey& key) override {
    trace_.push_back(absl::StrCat("release ", key.generation.value()));
  }
  void Adopt(const GenerationKey& key, const ProcessIdentity& process,
             AdoptedNodes nodes) override {
    trace_.push_back(absl::StrCat("adopt ", key.generation.value(), " pid ", process.pid));
    for (const NodeName& node : nodes.with_agents) {
      trace_.push_back(absl::StrCat("agent ", node.text()));
    }
  }
  void NoteNode(const v1::NodeSpec& node) override {
    trace_.push_back(absl::StrCat("node ", node.name(), " at ", node.address()));
  }
  void NoteWorker(const GenerationKey&, const WorkerProcess& worker) override {
    trace_.push_back(absl::StrCat("worker ", worker.node.text(), " pid ", worker.pid));
  }
  void End(const GenerationKey& key) override {
    trace_.push_back(absl::StrCat("end ", key.generation.value()));
  }
  std::vector<LaunchEnded> Poll(absl::Duration) override { return std::exchange(ended, {}); }

  absl::Status refusal;
  std::vector<LaunchEnded> ended;

 private:
  Trace& trace_;
};

class FakeStreams : public WorkerStreams {
 public:
  explicit FakeStreams(Trace& trace) : trace_(trace) {}
  void Send(StreamId stream, v1::AttachResponse message) override {
    trace_.push_back(
        absl::StrCat(message.has_welcome() ? "welcome " : "directive ", stream.value()));
    if (message.has_welcome()) welcomes[stream] = message.welcome();
    last[stream] = std::move(message);
  }
  void Close(StreamId stream, const absl::Status& status) override {
    trace_.push_back(
        absl::StrCat("close ", stream.value(), " ", absl::StatusCodeToString(status.code())));
  }
  std::map<StreamId, v1::AttachResponse> last;
  std::map<StreamId, v1::Welcome> welcomes;

 private:
  Trace& trace_;
};

class FakeAgents : public AgentStreams {
 public:
  explicit FakeAgents(Trace& trace) : trace_(trace) {}
  void Send(StreamId stream, v1::AgentCommand command) override {
    trace_.push_back(absl::StrCat("tell agent ", stream.value(), " to drop ",
                                  command.drop().job_id(), " up to ", command.drop().history(), "/",
                                  command.drop().step()));
  }

 private:
  Trace& trace_;
};

}  // namespace espalier
