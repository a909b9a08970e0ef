// Whatever fails in a session, before its steps or within them, it ends with a reason: no exception
// leaves it.
#include "worker/session.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/shared_segment.h"
#include "common/config/job_file.h"
#include "tests/worker/support/failing_allocator.h"
#include "tests/worker/support/training_world.h"
#include "tests/worker/tiny_job.h"
#include "worker/collective/in_process.h"
#include "worker/data/prepare.h"
#include "worker/sync/together.h"

namespace espalier {
namespace {

class Sessions : public testing::Test {
 protected:
  Sessions() {
    const auto spec = LoadJobFile(job_.folder() / "job.yaml", {"train.steps=2"});
    EXPECT_TRUE(spec.ok()) << spec.status();
    *options_.welcome.mutable_spec() = *spec;
    options_.welcome.set_generation(1);
  }

  absl::Status Run(ScriptedClient& client) {
    static int runs = 0;
    return Run(client, absl::StrCat("checkpoints-", ++runs));
  }
  absl::Status Run(ScriptedClient& client, const std::string& checkpoints) {
    options_.welcome.set_checkpoint_directory(job_.folder() / checkpoints);
    v1::Directive run;
    run.set_run_state(v1::RUN_STATE_RUN);
    client.Set(run);
    const std::vector<std::unique_ptr<Collective>> world = InProcessGroup(1, absl::Seconds(30));
    WorkerSession session({*world[0], RealClock(), client.progress()}, client, options_);
    return session.Run().status();
  }

  // Two steps of grpo on sums, of which a new model gets none right.
  v1::JobSpec JobOfSums() const {
    std::string rows;
    for (int i = 0; i < 8; ++i) {
      absl::StrAppend(&rows, R"({"prompt": ")", i, R"( + 1 = ", "record": {"answer": )", i + 1,
                      "}}\n");
    }
    const PrepareOptions prepare{.inputs = {job_.folder().Write("in/rows.jsonl", rows)},
                                 .output = job_.folder() / "prompts",
                                 .rows = RowOptions{.format = RowFormat::kPrompts},
                                 .split_by = SplitBy::kNone};
    const auto prepared = PrepareData(PosixFileSystem(), *MakeByteTokenizer(), prepare);
    EXPECT_TRUE(prepared.ok()) << prepared.status();
    const auto loaded =
        LoadJobFile(job_.folder() / "job.yaml",
                    {absl::StrCat("data.path=", prepare.output), "train.task=grpo", "train.steps=2",
                     "train.rollout.samples=4", "train.rollout.max_new_tokens=8",
                     "train.verifier.kind=arithmetic"});
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return *loaded;
  }

  TinyJob job_;
  SessionOptions options_;
};

TEST_F(Sessions, EndWithAStatusFromWhicheverAllocationOnMemoryIsOut) {
  int reasons = 0;
  bool failed = true;
  for (int64_t failing = 1; failed; failing += std::max<int64_t>(1, failing / 8)) {
    ScriptedClient client;
    absl::Status status;
    {
      const FailingAllocator allocator(failing, /*and_all_after=*/true);
      EXPECT_NO_THROW(status = Run(client));
      failed = FailingAllocator::failed();
    }
    reasons += status.ok() ? 0 : 1;
    EXPECT_EQ(!status.ok(), failed) << status;
    EXPECT_TRUE(status.ok() || absl::IsResourceExhausted(status)) << status;
  }
  EXPECT_GT(reasons, 10);
}

// Memory that is short for now is another matter: to try again may help.
TEST_F(Sessions, RefuseAModelThatNeverFitsAsTheySayOfBadInput) {
  options_.welcome.mutable_spec()->mutable_batch()->set_memory_limit_bytes(1000);
  ScriptedClient client;
  const absl::Status status = Run(client);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "the model does not fit")) << status;
}

// Invariant 10: what it lacks there was on the nodes that trained it.
TEST_F(Sessions, SayOfAJobThatHasTrainedThatItsNodeLacksWhatItStartsWith) {
  v1::JobSpec& spec = *options_.welcome.mutable_spec();
  const v1::JobSpec whole = spec;
  const auto lacks = [&](const std::function<void()>& take, absl::StatusCode code) {
    spec = whole;
    take();
    for (const int64_t least_step : {0, 1}) {
      options_.welcome.set_least_step(least_step);
      ScriptedClient client;
      const absl::Status status = Run(client);
      EXPECT_EQ(status.code(), code) << status;
      EXPECT_EQ(IsOfTheirNodes(status), least_step > 0) << status;
    }
  };
  lacks([&] { spec.mutable_data()->set_path(job_.folder() / "of-another-volume"); },
        absl::StatusCode::kNotFound);
  lacks([&] { spec.mutable_batch()->set_memory_limit_bytes(1000); },
        absl::StatusCode::kFailedPrecondition);
}

// Its program is opened behind the state that it goes on from.
TEST_F(Sessions, SayOfAJobThatHasTrainedThatItsNodeLacksItsVerifier) {
  v1::JobSpec& spec = *options_.welcome.mutable_spec();
  spec = JobOfSums();
  const auto run = [&](const std::string& checkpoints) {
    ScriptedClient client;
    return Run(client, checkpoints);
  };
  EXPECT_TRUE(run("trained").ok());
  v1::TrainSpec& train = *spec.mutable_train();
  train.set_steps(4);
  train.mutable_verifier()->set_kind("external");
  train.mutable_verifier()->add_command("no-such-judge");
  EXPECT_EQ(run("new").code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(IsOfTheirNodes(run("new")));
  options_.welcome.set_least_step(2);
  EXPECT_EQ(run("trained").code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(IsOfTheirNodes(run("trained")));
}

TEST_F(Sessions, SayAtTheEndThatNothingWasLearnt) {
  *options_.welcome.mutable_spec() = JobOfSums();
  const auto log = [&](const std::string& checkpoints) {
    ScriptedClient client;
    testing::internal::CaptureStderr();
    EXPECT_EQ(Run(client, checkpoints), absl::OkStatus());
    return testing::internal::GetCapturedStderr();
  };
  constexpr char kNothing[] = "the job has learnt nothing: ";
  const std::string equal = log("sums");
  EXPECT_TRUE(absl::StrContains(equal, absl::StrCat(kNothing, "in each of the 8 groups"))) << equal;
  const std::string resumed = log("sums");
  EXPECT_TRUE(absl::StrContains(resumed, absl::StrCat(kNothing, "none of the 2 steps"))) << resumed;
  *options_.welcome.mutable_spec() = *LoadJobFile(job_.folder() / "job.yaml", {"train.steps=2"});
  const std::string text = log("text");
  EXPECT_FALSE(absl::StrContains(text, kNothing)) << text;
}

// What the nodes have does not make a loss finite.
TEST_F(Sessions, SayOfALossThatIsNotFiniteThatItIsTheJobs) {
  ScriptedClient client;
  ASSERT_TRUE(Run(client, "checkpoints").ok());
  v1::JobSpec& spec = *options_.welcome.mutable_spec();
  spec.mutable_train()->set_steps(200);
  spec.mutable_train()->mutable_schedule()->set_learning_rate(1e30);
  spec.mutable_health()->set_non_finite(v1::NON_FINITE_POLICY_FAIL);
  options_.welcome.set_least_step(2);
  const absl::Status status = Run(client, "checkpoints");
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_FALSE(IsOfTheirNodes(status)) << status;
}

TEST_F(Sessions, EndWithAStatusWhenAnythingBetweenTheirStagesThrows) {
  ScriptedClient client;
  client.on_report = [](ScriptedClient&, const v1::AttachRequest& message) {
    if (message.has_ready()) throw std::runtime_error("a device has failed");
  };
  absl::Status status;
  ASSERT_NO_THROW(status = Run(client));
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(absl::StrContains(status.message(), "a device has failed")) << status;
}

// Two nodes with folders and memory of their own, of which one writes the checkpoint.
TEST_F(Sessions, LeaveTheMemoryOfANodeThatHasNoCopyOfTheCheckpoint) {
  const std::string memory = job_.folder() / "memory";
  options_.welcome.set_job_id("nano-1");
  options_.welcome.set_warm_folder(memory);
  options_.welcome.mutable_spec()->mutable_checkpoint()->set_copies(1);
  const v1::Directive stop = StopDirective(StopKeeps::kCheckpoint);
  const std::vector<std::unique_ptr<Collective>> world = InProcessGroup(2, absl::Seconds(30));
  std::vector<std::thread> ranks;
  for (const char* node : {"studio", "macbook"}) {
    SessionOptions options = options_;
    options.node = node;
    options.welcome.set_checkpoint_directory(job_.folder() / node);
    Collective& collective = *world[ranks.size()];
    ranks.emplace_back([options, stop, &collective] {
      ScriptedClient client;
      client.Set(stop);
      WorkerSession session({collective, RealClock(), client.progress()}, client, options);
      const absl::StatusOr<SessionResult> result = session.Run();
      EXPECT_EQ(result.value_or(SessionResult()).outcome, v1::OUTCOME_STOPPED) << result.status();
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_TRUE(ListSegments(memory, "studio")->empty());
  const std::vector<RegisteredSegment> left = *ListSegments(memory, "macbook");
  ASSERT_EQ(left.size(), 1u);
  EXPECT_TRUE(RemoveSegment(memory, left[0].name));
}

TEST_F(Sessions, GoOnWithAReproducibleRunByAsManyThreadsAsBefore) {
  v1::TrainSpec& train = *options_.welcome.mutable_spec()->mutable_train();
  train.set_reproducible(true);
  const int threads = at::get_num_threads();
  ScriptedClient client;
  at::set_num_threads(2);
  EXPECT_TRUE(Run(client, "checkpoints").ok());
  train.set_steps(4);
  at::set_num_threads(1);
  const absl::Status status = Run(client, "checkpoints");
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(status.message(), "cpu with 2 threads on ")) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "cpu with 1 thread on ")) << status;
  at::set_num_threads(2);
  EXPECT_TRUE(Run(client, "checkpoints").ok());
  at::set_num_threads(threads);
}

}  // namespace
}  // namespace espalier
