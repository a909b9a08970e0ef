// A loop with everything around it in memory, turned by hand. Used by loop_test.cc and
// tests/coordinator/service/view_publisher_test.cc.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/config/job_file.h"
#include "coordinator/loop/loop.h"
#include "tests/coordinator/loop/fake_observer.h"
#include "tests/coordinator/loop/loop_fakes.h"
#include "tests/coordinator/scratch_folder.h"

namespace espalier {

// A loop on two nodes, turned by hand.
class LoopWorld {
 public:
  // What the loop publishes goes to `shown`; null: to the observer here.
  explicit LoopWorld(LoopObserver* shown = nullptr) : shown_(shown ? shown : &observer) {
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
    loop = std::make_unique<Loop>(
        LoopParts{&clock, &journal, &launcher, &streams, &agents, inbox.get(), shown_},
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
  void Say(int64_t stream, v1::AttachRequest message) {
    inbox->Put(StreamMessage{StreamId(stream), std::move(message), [this] { ++taken; }});
  }
  // Both ranks of the newest generation attach and are ready; stream = rank + 1 + offset.
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

  // The job as it was published last; an empty one: it was not.
  JobRecord Record() const {
    const auto found = observer.state.jobs.find(JobId(job));
    return found == observer.state.jobs.end() ? JobRecord() : found->second.record;
  }
  // The trace so far, and begins a new one.
  std::string TakeTrace() { return absl::StrJoin(std::exchange(trace, {}), "; "); }

  ScratchFolder folder;
  Trace trace;
  HandClock clock;
  TracedJournal journal{trace};
  FakeLauncher launcher{trace};
  FakeStreams streams{trace};
  FakeAgents agents{trace};
  FakeObserver observer;
  std::unique_ptr<Inbox> inbox;
  std::unique_ptr<Loop> loop;
  std::string job;
  int taken = 0;

 private:
  LoopObserver* const shown_;
  v1::ClusterSpec cluster_;
};

}  // namespace espalier
