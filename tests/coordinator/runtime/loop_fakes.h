// The loop's surroundings in memory. They write what happens to one trace, in order, so that tests
// can see what came first.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/config/job_file.h"
#include "coordinator/runtime/loop.h"
#include "coordinator/runtime/memory_journal.h"
#include "tests/coordinator/runtime/scratch_folder.h"

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

// A loop on two nodes, turned by hand.
class LoopWorld {
 public:
  LoopWorld() {
    for (const char* name : {"left", "right"}) {
      v1::NodeSpec& node = *cluster_.add_nodes();
      node.set_name(name);
      node.set_address("127.0.0.1");
    }
    Restart();
    trace.clear();
  }

  // A new loop over the same journal, as after a crash.
  void Restart() {
    inbox = std::make_unique<Inbox>(Inbox::Options{});
    loop =
        std::make_unique<Loop>(LoopParts{&clock, &journal, &launcher, &links, inbox.get(), &board},
                               LoopOptions{.cluster = cluster_, .state_dir = folder.root()});
    const absl::Status status = loop->Start();
    EXPECT_TRUE(status.ok()) << status;
  }
  // Deals with all that waits, and a tick.
  void Turn() {
    clock.Advance(absl::Milliseconds(100));
    inbox->Wake();
    loop->Turn();
  }

  void Submit(const std::string& request_id = "") {
    v1::SubmitRequest request;
    request.set_request_id(request_id);
    request.set_yaml("name: test\n");
    v1::JobSpec& spec = *request.mutable_spec();
    spec.set_name("test");
    spec.mutable_model()->set_preset("nano");
    spec.mutable_data()->set_path("/no/data");
    spec.mutable_parallel()->set_min_nodes(2);
    FillJobDefaults(spec);
    Ask(std::move(request));
  }
  template <typename Request>
  void Ask(Request request) {
    inbox->Put(OperatorCall{std::move(request), [this](absl::StatusOr<Answer> answer) {
                              trace.push_back(absl::StrCat(
                                  "reply ", absl::StatusCodeToString(answer.status().code())));
                              if (answer.ok() && !answer->job_id.empty()) job = answer->job_id;
                            }});
  }
  void Say(int64_t link, v1::AttachRequest message) {
    inbox->Put(LinkMessage{LinkId(link), std::move(message), [this] { ++taken; }});
  }
  // Both ranks of the newest generation attach and are ready; link = rank + 1 + offset.
  void AttachAll(int64_t generation, int64_t offset = 0) {
    for (int32_t rank = 0; rank < 2; ++rank) {
      v1::AttachRequest message;
      v1::Hello& hello = *message.mutable_hello();
      hello.set_job_id(job);
      hello.set_generation(generation);
      hello.set_rank(rank);
      hello.set_world_size(2);
      hello.set_node(rank == 0 ? "left" : "right");
      hello.set_pid(500 + rank);
      Say(rank + 1 + offset, message);
    }
    Turn();
    for (int32_t rank = 0; rank < 2; ++rank) {
      v1::AttachRequest message;
      message.mutable_ready()->set_next_step(0);
      Say(rank + 1 + offset, message);
    }
    Turn();
  }

  v1::JobStatus Status() const {
    const auto view = board.Current();
    const auto found = view->jobs.find(JobId(job));
    return found == view->jobs.end() ? v1::JobStatus() : found->second->StatusAt({});
  }
  // The trace so far, and begins a new one.
  std::string TakeTrace() { return absl::StrJoin(std::exchange(trace, {}), "; "); }

  ScratchFolder folder;
  Trace trace;
  HandClock clock;
  TracedJournal journal{trace};
  FakeLauncher launcher{trace};
  FakeLinks links{trace};
  ViewBoard board;
  std::unique_ptr<Inbox> inbox;
  std::unique_ptr<Loop> loop;
  std::string job;
  int taken = 0;

 private:
  v1::ClusterSpec cluster_;
};

}  // namespace espalier
