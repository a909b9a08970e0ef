// Agreement: every directive is obeyed by all ranks at the same step, whatever rank 0 alone knows.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <fstream>

#include "tests/worker/support/test_folder.h"
#include "tests/worker/support/training_world.h"
#include "worker/state/checkpoint_store.h"
#include "worker/train/plan.h"

namespace espalier {
namespace {

using OnReport = std::function<void(ScriptedClient&, const v1::AttachRequest&)>;

// Only rank 0's client hears the coordinator; the others must learn from rank 0.
WorldOptions ThreeRanks(int64_t steps, const std::string& folder, OnReport on_report) {
  WorldOptions options;
  options.ranks = 3;
  options.spec = TinySpec(steps);
  options.checkpoints = folder;
  options.script = [on_report](int rank, ScriptedClient& client) {
    if (rank == 0) client.on_report = on_report;
  };
  return options;
}

v1::Directive Make(int64_t number, v1::RunState state) {
  v1::Directive directive;
  directive.set_number(number);
  directive.set_run_state(state);
  return directive;
}

bool Committed(const v1::AttachRequest& message, int64_t step) {
  return message.has_step() && message.step().step() == step;
}

TEST(Agreement, AllRanksStopAtTheSameStep) {
  const TestFolder folder;
  const auto script = [](ScriptedClient& client, const v1::AttachRequest& message) {
    if (Committed(message, 4)) client.Set(Make(1, v1::RUN_STATE_STOP));
  };
  for (const RankResult& result : TrainWorld(ThreeRanks(50, folder.path(), script))) {
    ASSERT_TRUE(result.outcome.ok()) << result.outcome.status();
    EXPECT_EQ(*result.outcome, v1::OUTCOME_STOPPED);
    EXPECT_EQ(result.replica->step(), Step(5));
    ASSERT_EQ(result.client->acks().size(), 1u);
    EXPECT_EQ(result.client->acks()[0].next_step(), 5);
  }
  EXPECT_EQ(Names(folder.path()), std::set<std::string>{".writer"})
      << "no checkpoint was asked for";
}

TEST(Agreement, AStopToResumeLeavesACheckpointOfThatStep) {
  const TestFolder folder;
  const auto script = [](ScriptedClient& client, const v1::AttachRequest& message) {
    if (!Committed(message, 4)) return;
    v1::Directive stop = Make(1, v1::RUN_STATE_STOP);
    stop.set_checkpoint_before_stop(true);
    client.Set(stop);
  };
  const std::vector<RankResult> stopped = TrainWorld(ThreeRanks(50, folder.path(), script));
  EXPECT_EQ(*stopped[0].outcome, v1::OUTCOME_STOPPED);
  EXPECT_EQ(Names(folder.path()), (std::set<std::string>{".writer", "step-00000005"}));
  const std::vector<RankResult> resumed = TrainWorld(ThreeRanks(7, folder.path(), {}));
  for (const RankResult& result : resumed) {
    ASSERT_TRUE(result.outcome.ok()) << result.outcome.status();
    ASSERT_EQ(result.client->steps().size(), 2u);
    EXPECT_EQ(result.client->steps()[0].step(), 5);
  }
}

// Paused at the boundary after step 3, until rank 2 too has said so; then on to the end.
TEST(Agreement, APauseHoldsAllRanksAtTheSameStepInMemory) {
  const TestFolder folder;
  WorldOptions options;
  const auto resume = [&](ScriptedClient& client, const v1::AttachRequest& message) {
    if (Committed(message, 3)) client.Set(Make(1, v1::RUN_STATE_PAUSE));
  };
  options = ThreeRanks(6, folder.path(), resume);
  ScriptedClient* first = nullptr;
  options.script = [&first, resume](int rank, ScriptedClient& client) {
    if (rank == 0) {
      first = &client;
      client.on_report = resume;
    }
    if (rank == 2) {
      client.on_report = [&first](ScriptedClient&, const v1::AttachRequest& message) {
        if (message.has_ack() && message.ack().number() == 1) {
          first->Set(Make(2, v1::RUN_STATE_RUN));
        }
      };
    }
  };
  for (const RankResult& result : TrainWorld(options)) {
    ASSERT_TRUE(result.outcome.ok()) << result.outcome.status();
    EXPECT_EQ(*result.outcome, v1::OUTCOME_COMPLETED);
    const std::vector<v1::DirectiveAck> acks = result.client->acks();
    ASSERT_EQ(acks.size(), 2u);
    EXPECT_EQ(acks[0].run_state(), v1::RUN_STATE_PAUSE);
    EXPECT_EQ(acks[0].next_step(), 4);
    EXPECT_EQ(acks[1].next_step(), 4) << "a paused rank takes no step";
    EXPECT_EQ(result.client->steps().size(), 6u);
  }
}

class CountedAwake : public KeepAwake {
 public:
  explicit CountedAwake(std::atomic<int>& alive) : alive_(alive) { ++alive_; }
  ~CountedAwake() override { --alive_; }

 private:
  std::atomic<int>& alive_;
};

TEST(Agreement, AMachineIsKeptAwakeWhileItTrainsAndNotInAPause) {
  const TestFolder folder;
  std::atomic<int> awake{0};
  std::atomic<int> asked{0};
  WorldOptions options = ThreeRanks(6, folder.path(), nullptr);
  options.ranks = 1;
  options.keep_awake = [&]() -> absl::StatusOr<std::unique_ptr<KeepAwake>> {
    if (++asked == 1) return std::make_unique<CountedAwake>(awake);
    return absl::InternalError("no");
  };
  options.script = [&](int, ScriptedClient& client) {
    client.on_report = [&](ScriptedClient& self, const v1::AttachRequest& message) {
      if (message.has_step()) {
        EXPECT_EQ(awake, message.step().step() <= 3 ? 1 : 0);
      }
      if (Committed(message, 3)) self.Set(Make(1, v1::RUN_STATE_PAUSE));
      if (!message.has_ack() || message.ack().number() != 1) return;
      EXPECT_EQ(awake, 0) << "in the pause";
      self.Set(Make(2, v1::RUN_STATE_RUN));
    };
  };
  const std::vector<RankResult> results = TrainWorld(options);
  ASSERT_TRUE(results[0].outcome.ok()) << results[0].outcome.status();
  EXPECT_EQ(*results[0].outcome, v1::OUTCOME_COMPLETED) << "that it cannot be is no error";
  EXPECT_EQ(asked, 2);
  EXPECT_EQ(awake, 0);
}

// A file lies where the checkpoint is to go.
TEST(Agreement, AStopThatIsCalledOffForWantOfACheckpointCostsNoStep) {
  const TestFolder folder;
  std::ofstream(folder.path() + "/step-00000004") << "in the way";
  const auto script = [](ScriptedClient& client, const v1::AttachRequest& message) {
    if (Committed(message, 3)) {
      v1::Directive stop = Make(1, v1::RUN_STATE_STOP);
      stop.set_checkpoint_before_stop(true);
      client.Set(stop);
    }
    const bool failed = message.has_checkpoint() && !message.checkpoint().error().empty();
    if (failed) client.Set(Make(2, v1::RUN_STATE_RUN));
  };
  for (const RankResult& result : TrainWorld(ThreeRanks(6, folder.path(), script))) {
    ASSERT_TRUE(result.outcome.ok()) << result.outcome.status();
    EXPECT_EQ(*result.outcome, v1::OUTCOME_COMPLETED);
    EXPECT_EQ(result.client->steps().size(), 6u);
  }
  EXPECT_EQ(Names(folder.path()).count("step-00000006"), 1u);
}

// It is wanted again as soon as espalierd is back.
TEST(Agreement, AMachineIsKeptAwakeWhileItHoldsForALease) {
  const TestFolder folder;
  std::atomic<int> awake{0};
  std::atomic<bool> leased{true};
  std::atomic<int> asked{0};
  WorldOptions options = ThreeRanks(4, folder.path(), nullptr);
  options.keep_awake = [&]() -> absl::StatusOr<std::unique_ptr<KeepAwake>> {
    return std::make_unique<CountedAwake>(awake);
  };
  options.script = [&](int rank, ScriptedClient& client) {
    if (rank != 0) return;
    client.on_report = [&](ScriptedClient&, const v1::AttachRequest& message) {
      if (Committed(message, 2)) leased = false;
    };
    client.lease = [&](absl::Duration) {
      if (!leased && ++asked == 5) {
        EXPECT_EQ(awake, 3) << "while all hold";
        leased = true;
      }
      return leased.load();
    };
  };
  for (const RankResult& result : TrainWorld(options)) EXPECT_TRUE(result.outcome.ok());
  EXPECT_GE(asked, 5);
  EXPECT_EQ(awake, 0);
}

// Fencing: without its lease rank 0 obeys nothing and commits nothing, and with it the others;
// renewed, it goes on with what was asked meanwhile.
TEST(Agreement, AllRanksHoldAtTheSameStepWhileTheLeaseOfRankZeroHasRunOut) {
  const TestFolder folder;
  WorldOptions options = ThreeRanks(6, folder.path(), nullptr);
  std::atomic<bool> renewed{true};
  std::atomic<int> asked{0};
  options.script = [&](int rank, ScriptedClient& client) {
    if (rank != 0) return;
    client.on_report = [&](ScriptedClient& self, const v1::AttachRequest& message) {
      if (!Committed(message, 3)) return;
      v1::Directive directive = Make(1, v1::RUN_STATE_RUN);
      directive.set_checkpoint_request(1);
      self.Set(directive);
      renewed = false;
    };
    client.lease = [&](absl::Duration) {
      if (!renewed && ++asked == 5) {
        EXPECT_EQ(Names(folder.path()), std::set<std::string>{".writer"}) << "published";
        renewed = true;
      }
      return renewed.load();
    };
  };
  for (const RankResult& result : TrainWorld(options)) {
    ASSERT_TRUE(result.outcome.ok()) << result.outcome.status();
    EXPECT_EQ(*result.outcome, v1::OUTCOME_COMPLETED);
    ASSERT_EQ(result.client->acks().size(), 1u);
    EXPECT_EQ(result.client->acks()[0].next_step(), 4) << "obeyed when it was renewed";
    EXPECT_EQ(result.client->steps().size(), 6u);
  }
  EXPECT_EQ(asked, 5);
}

TEST(Agreement, ANewPlanBeginsAtItsStepOnAllRanks) {
  const TestFolder folder;
  const auto script = [](ScriptedClient& client, const v1::AttachRequest& message) {
    if (!Committed(message, 1)) return;
    v1::Directive directive = Make(1, v1::RUN_STATE_RUN);
    directive.mutable_plan()->set_number(2);
    directive.mutable_plan()->set_from_step(5);
    for (const int part : {2, 14, 0}) directive.mutable_plan()->add_sequences(part);
    client.Set(directive);
  };
  const std::vector<RankResult> results = TrainWorld(ThreeRanks(8, folder.path(), script));
  const int before[] = {6, 5, 5}, after[] = {2, 14, 0};
  for (size_t rank = 0; rank < results.size(); ++rank) {
    ASSERT_TRUE(results[rank].outcome.ok()) << results[rank].outcome.status();
    for (const v1::StepReport& step : results[rank].client->steps()) {
      EXPECT_EQ(step.shard(), step.step() < 5 ? before[rank] : after[rank])
          << "rank " << rank << ", step " << step.step();
    }
  }
}

TEST(SamplingLimit, IsTheRanksOwnOfTheDirectiveOrItsFixedShare) {
  v1::JobSpec spec;
  v1::Directive directive;
  EXPECT_EQ(SamplingLimit(directive, spec, Rank(1)).part, 1);
  EXPECT_EQ(SamplingLimit(directive, spec, Rank(1)).largest_share, 1);
  for (const double part : {1.0, 0.5}) {
    v1::RankLimit& limit = *directive.add_limits();
    limit.set_part(part);
    limit.set_largest_share(part / 2);
  }
  EXPECT_EQ(SamplingLimit(directive, spec, Rank(1)).part, 0.5);
  EXPECT_EQ(SamplingLimit(directive, spec, Rank(1)).largest_share, 0.25);
  for (const int share : {4, 1}) spec.mutable_parallel()->add_shares(share);
  EXPECT_EQ(SamplingLimit({}, spec, Rank(0)).largest_share, 0.8);
  EXPECT_EQ(SamplingLimit(directive, spec, Rank(1)).largest_share, 0.2) << "the smaller one";
}

TEST(Agreement, APlanThatDoesNotFitFailsAllRanksAlike) {
  const TestFolder folder;
  const auto script = [](ScriptedClient& client, const v1::AttachRequest& message) {
    if (!Committed(message, 1)) return;
    v1::Directive directive = Make(1, v1::RUN_STATE_RUN);
    directive.mutable_plan()->set_number(1);
    for (const int part : {2, 13, 0}) directive.mutable_plan()->add_sequences(part);
    client.Set(directive);
  };
  for (const RankResult& result : TrainWorld(ThreeRanks(8, folder.path(), script))) {
    EXPECT_EQ(result.outcome.status().code(), absl::StatusCode::kInvalidArgument)
        << result.outcome.status();
  }
}

TEST(Agreement, ACheckpointIsWrittenOncePerRequest) {
  const TestFolder folder;
  const auto script = [](ScriptedClient& client, const v1::AttachRequest& message) {
    if (!Committed(message, 2)) return;
    v1::Directive directive = Make(1, v1::RUN_STATE_RUN);
    directive.set_checkpoint_request(1);
    client.Set(directive);
  };
  const std::vector<RankResult> results = TrainWorld(ThreeRanks(6, folder.path(), script));
  const std::vector<v1::CheckpointReport> reports = results[0].client->checkpoints();
  ASSERT_EQ(reports.size(), 2u) << "the one asked for, and the one at the end";
  EXPECT_EQ(reports[0].step(), 3);
  EXPECT_EQ(reports[1].step(), 6);
  EXPECT_EQ(results[1].client->checkpoints().size(), 2u) << "it has the same folder";
}

struct ResumeCase {
  v1::Precision precision;
  v1::MomentType moments;
  bool tied;
};
class ResumeIn : public testing::TestWithParam<ResumeCase> {
 protected:
  static WorldOptions ThreeRanks(int64_t steps, const std::string& folder, OnReport on_report) {
    WorldOptions options = espalier::ThreeRanks(steps, folder, std::move(on_report));
    options.spec.mutable_train()->set_precision(GetParam().precision);
    options.spec.mutable_train()->mutable_optimizer()->set_moments(GetParam().moments);
    options.spec.mutable_model()->set_dropout(0.1);
    options.tied = GetParam().tied;
    return options;
  }
};
INSTANTIATE_TEST_SUITE_P(
    EveryPrecision, ResumeIn,
    testing::Values(ResumeCase{v1::PRECISION_FP32, v1::MOMENT_TYPE_FP32, true},
                    ResumeCase{v1::PRECISION_BF16, v1::MOMENT_TYPE_FP32, false},
                    ResumeCase{v1::PRECISION_BF16, v1::MOMENT_TYPE_INT8, true},
                    ResumeCase{v1::PRECISION_FP32, v1::MOMENT_TYPE_INT8, false}),
    [](const auto& info) {
      return v1::Precision_Name(info.param.precision) + "_" +
             v1::MomentType_Name(info.param.moments);
    });

TEST_P(ResumeIn, TheNewestCheckpointReachesRanksOfAnyWorldAndTrainsOnAsIfUninterrupted) {
  const TestFolder folder, other;
  WorldOptions straight = ThreeRanks(10, other.path(), {});
  WorldOptions first =
      ThreeRanks(10, folder.path(), [](ScriptedClient& client, const auto& message) {
        v1::Directive stop = Make(1, v1::RUN_STATE_STOP);
        stop.set_checkpoint_before_stop(true);
        if (Committed(message, 5)) client.Set(stop);
      });
  const std::vector<RankResult> uninterrupted = TrainWorld(straight);
  TrainWorld(first);
  const std::vector<RankResult> resumed = TrainWorld(ThreeRanks(10, folder.path(), {}));
  for (const RankResult& result : resumed) {
    ASSERT_TRUE(result.outcome.ok()) << result.outcome.status();
    EXPECT_EQ(result.fingerprint, uninterrupted[0].fingerprint);
  }
}

TEST(StartState, ACheckpointWithMomentsOfTheOtherKindIsTrainedOn) {
  for (const auto& [before, after] : {std::pair(v1::MOMENT_TYPE_FP32, v1::MOMENT_TYPE_INT8),
                                      std::pair(v1::MOMENT_TYPE_INT8, v1::MOMENT_TYPE_FP32)}) {
    const auto train = [](const TestFolder& folder, v1::MomentType moments, int64_t stop_after) {
      const auto script = [stop_after](ScriptedClient& client, const v1::AttachRequest& message) {
        v1::Directive stop = Make(1, v1::RUN_STATE_STOP);
        stop.set_checkpoint_before_stop(true);
        if (Committed(message, stop_after)) client.Set(stop);
      };
      WorldOptions options = ThreeRanks(40, folder.path(), script);
      options.spec.mutable_train()->mutable_optimizer()->set_moments(moments);
      return TrainWorld(options);
    };
    const TestFolder folder, other;
    const std::vector<RankResult> straight = train(other, before, 40);
    const size_t done = train(folder, before, 20)[0].losses.size();
    const std::vector<RankResult> resumed = train(folder, after, 40);
    ASSERT_EQ(done + resumed[0].losses.size(), 40u);
    for (size_t step = done; step < 40; ++step) {
      EXPECT_NEAR(resumed[0].losses[step - done], straight[0].losses[step], 0.02);
    }
    for (const RankResult& result : resumed) {
      EXPECT_EQ(result.fingerprint, resumed[0].fingerprint);
    }
  }
}

TEST(StartState, ACheckpointOfAnotherOrderIsRefusedByName) {
  const TestFolder folder;
  TrainWorld(ThreeRanks(2, folder.path(), {}));
  WorldOptions changed = ThreeRanks(4, folder.path(), {});
  changed.spec.mutable_train()->set_global_batch(8);
  for (const RankResult& result : TrainWorld(changed)) {
    EXPECT_EQ(result.outcome.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_NE(result.outcome.status().message().find("global_batch"), std::string::npos)
        << result.outcome.status();
  }
}

}  // namespace
}  // namespace espalier
