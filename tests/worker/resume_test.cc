// Real processes, killed for real: what is lost is at most the work since the last checkpoint, with
// a warm state the step in flight, and what comes out is the same, to the bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <set>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "tests/worker/tiny_job.h"

namespace espalier {
namespace {

using testing::HasSubstr;

constexpr char kLastStep[] = "00000060";

std::vector<std::string> Command(const TinyJob& job, int ranks, const std::string& name) {
  std::filesystem::create_directories(job.folder() / name);
  std::vector<std::string> arguments = job.Arguments(name);
  if (ranks > 1) return MpirunWorker(ranks, job.folder() / name, arguments);
  arguments.insert(arguments.begin(), WorkerProgram());
  return arguments;
}

Ended Train(const TinyJob& job, int ranks, const std::string& name) {
  return RunToEnd(Command(job, ranks, name), job.folder() / name + ".log");
}

// Kills one rank with SIGKILL once `step` is about to be committed; false when the run was over
// before.
bool TrainAndKill(const TinyJob& job, int ranks, const std::string& name, int64_t step) {
  Child child(Command(job, ranks, name), job.folder() / name + ".log");
  if (!WaitUntil(child, [&] { return job.HasReached(name, step); })) {
    ADD_FAILURE() << "step " << step << " was not reached:\n" << child.output();
    return false;
  }
  if (ranks == 1) {
    child.Kill();
  } else {
    const std::string pid = ReadText(job.folder() / name + absl::StrCat("/pid-", step % ranks));
    kill(std::stoi(pid), SIGKILL);
  }
  return child.Wait() != 0;
}

void ExpectSameResult(const TinyJob& job, const std::string& a, const std::string& b,
                      const std::string& last_step = kLastStep) {
  for (const char* file : {"model.safetensors", "optimizer.safetensors"}) {
    const std::string expected = ReadText(job.Checkpoint(a, last_step) + "/" + file);
    EXPECT_FALSE(expected.empty()) << a << " has no step " << last_step;
    EXPECT_TRUE(expected == ReadText(job.Checkpoint(b, last_step) + "/" + file))
        << b << ": " << file << " differs";
  }
}

class ResumeEquality : public testing::TestWithParam<uint64_t> {};

// Odd seeds on two ranks, even ones on one.
TEST_P(ResumeEquality, AKilledRunEndsWithTheBitsOfTheUninterruptedOne) {
  const TinyJob job;
  const uint64_t seed = GetParam();
  const int ranks = 1 + static_cast<int>(seed % 2);
  const Ended straight = Train(job, ranks, "straight");
  ASSERT_EQ(straight.code, 0) << straight.output;
  const int64_t step = static_cast<int64_t>(SplitMix64(seed).Below(45));
  TrainAndKill(job, ranks, "killed", step);
  const Ended resumed = Train(job, ranks, "killed");
  ASSERT_EQ(resumed.code, 0) << "killed after step " << step << "\n" << resumed.output;
  ExpectSameResult(job, "straight", "killed");
}

INSTANTIATE_TEST_SUITE_P(TenSeeds, ResumeEquality, testing::Range<uint64_t>(1, 11));

TEST(ExactlyOnce, EverySampleOncePerEpochAcrossAKillAndAnotherWorldSize) {
  const TinyJob job;
  TrainAndKill(job, 3, "run", 17);
  const Ended resumed = Train(job, 2, "run");
  ASSERT_EQ(resumed.code, 0) << resumed.output;
  std::set<int64_t> seen;
  const auto used = job.SamplesUsed("run");
  ASSERT_EQ(used.size(), 60u);
  for (int64_t step = 0; step < TinyJob::kStepsPerEpoch; ++step) {
    EXPECT_EQ(used.at(step).size(), static_cast<size_t>(TinyJob::kBatch)) << "step " << step;
    for (const int64_t id : used.at(step)) EXPECT_TRUE(seen.insert(id).second) << "twice: " << id;
  }
  EXPECT_EQ(seen.size(), static_cast<size_t>(TinyJob::kSamples));
  EXPECT_EQ(*seen.rbegin(), TinyJob::kSamples - 1);
}

// The newest step that a run has logged may have been in flight; those before it were committed.
void ExpectNoCommittedStepTwice(const TinyJob& job, const std::string& name) {
  int64_t logged = -1;
  for (const auto& [first, last] : job.StepsOfRuns(name)) {
    EXPECT_GE(first, logged) << "a step that was committed was computed again";
    EXPECT_LE(first, logged + 1) << "a step was left out";
    logged = last;
  }
}

TEST(WarmState, KillsRepeatNoCommittedStep) {
  const TinyJob job(/*warm=*/true);
  const Ended straight = Train(job, 1, "straight");
  ASSERT_EQ(straight.code, 0) << straight.output;
  SplitMix64 random(3);
  for (int kill = 0; kill < 10; ++kill) {
    const auto used = job.SamplesUsed("killed");
    const int64_t newest = used.empty() ? 0 : used.rbegin()->first;
    const int64_t more = static_cast<int64_t>(random.Below(4));
    TrainAndKill(job, 1, "killed", std::min<int64_t>(newest + more, 59));
  }
  const Ended resumed = Train(job, 1, "killed");
  ASSERT_EQ(resumed.code, 0) << resumed.output;
  ExpectNoCommittedStepTwice(job, "killed");
  ExpectSameResult(job, "straight", "killed");
  EXPECT_TRUE(Names(job.folder() / "killed/checkpoints/.warm").empty()) << "it is given back";
}

// The next world goes on from what the newest of the ranks had committed.
TEST(WarmState, AWorldThatLostARankRepeatsNoCommittedStep) {
  const TinyJob job(/*warm=*/true);
  for (const int64_t step : {5, 12, 20}) TrainAndKill(job, 2, "run", step);
  const Ended resumed = Train(job, 2, "run");
  ASSERT_EQ(resumed.code, 0) << resumed.output;
  ExpectNoCommittedStepTwice(job, "run");
}

TEST(WarmState, OfALongerWorldIsGivenBackAtTheEnd) {
  const TinyJob job(/*warm=*/true);
  TrainAndKill(job, 3, "run", 5);
  EXPECT_FALSE(Names(job.folder() / "run/checkpoints/.warm").empty());
  const Ended resumed = Train(job, 1, "run");
  ASSERT_EQ(resumed.code, 0) << resumed.output;
  EXPECT_TRUE(Names(job.folder() / "run/checkpoints/.warm").empty());
}

// Evaluations at 5, 10, 15 and 20; the first is a gain, and no other can be.
TEST(Patience, EndsARunAtTheSameStepAndWithTheSameBitsWhateverKilledItBefore) {
  TinyJob job(/*warm=*/true, /*validation=*/true);
  for (const char* setting :
       {"evaluate.every_steps=5", "evaluate.max_sequences=4", "evaluate.patience=3",
        "evaluate.min_delta=1000", "train.schedule.plateau_patience=1"}) {
    job.Set(setting);
  }
  const Ended straight = Train(job, 1, "straight");
  ASSERT_EQ(straight.code, 0) << straight.output;
  EXPECT_THAT(straight.output, HasSubstr("completed after step 20"));
  EXPECT_THAT(straight.output, HasSubstr("ended early: in 3 evaluations in a row"));
  for (const int64_t step : {4, 9, 14}) TrainAndKill(job, 1, "killed", step);
  const Ended resumed = Train(job, 1, "killed");
  ASSERT_EQ(resumed.code, 0) << resumed.output;
  EXPECT_THAT(resumed.output, HasSubstr("completed after step 20"));
  ExpectSameResult(job, "straight", "killed", "00000020");
  const Ended again = Train(job, 1, "straight");
  EXPECT_EQ(again.code, 0) << again.output;
  EXPECT_THAT(again.output, HasSubstr("completed after step 20")) << "it has ended";
}

// Mpirun's own code says that it failed; ours, of the rank that noticed, is in the log.
TEST(LostPeer, EndsTheWorldWithoutWaitingForIt) {
  const TinyJob job;
  EXPECT_TRUE(TrainAndKill(job, 2, "run", 5));
}

// Its ids are others than those that the model has learnt, also where there are no more of them.
TEST(ModelFrom, DataOfAnotherTokenizerThanTheModelsAreRefused) {
  TinyJob job;
  const auto run = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), WorkerProgram());
    return RunToEnd(arguments, job.folder() / "run.log");
  };
  ASSERT_EQ(Train(job, 1, "first").code, 0);
  std::string lines;
  for (int i = 0; i < 3000; ++i) absl::StrAppend(&lines, "the sum of ", i, " and ", i + 7, "\n");
  const std::string text = job.folder().Write("text.txt", lines), bpe = job.folder() / "bpe";
  const std::string other = job.folder() / "other";
  ASSERT_EQ(run({"data", "tokenizer", "--output", bpe, "--vocab-size", "280", text}).code, 0);
  ASSERT_EQ(run({"data", "prepare", "--output", other, "--tokenizer", bpe, text}).code, 0);
  job.Set(absl::StrCat("data.path=", other));
  job.Set(absl::StrCat("model={from: ", job.folder() / "first", "/checkpoints}"));
  const Ended refused = Train(job, 1, "second");
  EXPECT_EQ(refused.code, 2) << refused.output;
  EXPECT_THAT(refused.output, HasSubstr("prepare the data with --tokenizer"));
}

}  // namespace
}  // namespace espalier
