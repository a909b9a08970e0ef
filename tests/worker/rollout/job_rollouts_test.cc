// What a job says of sampling and judging.
#include "worker/rollout/job_rollouts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/config/job_file.h"
#include "tests/worker/rollout/sampling_world.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

// What is learnt from a prompt is never cut in silence.
TEST(JobRollouts, APromptLeavesRoomForWhatIsSampled) {
  v1::JobSpec spec;
  spec.mutable_data()->set_sequence_length(128);
  spec.mutable_train()->mutable_rollout()->set_max_new_tokens(100);
  EXPECT_TRUE(CheckRoom(spec, 3, 28).ok());
  EXPECT_EQ(CheckRoom(spec, 3, 0).code(), absl::StatusCode::kInvalidArgument);
  const absl::Status refused = CheckRoom(spec, 3, 29);
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("prompt 3 has 29 tokens; with 100 new ones (train.rollout.max_new_tokens) "
                        "data.sequence_length 128 has room for 1 to 28"));
}

// A pause waits for what is being judged.
TEST(JobRollouts, AsManyAreJudgedAtOnceAsProgramsHaveInHand) {
  v1::VerifierSpec verifier;
  verifier.set_kind("units");
  EXPECT_EQ(JudgedAtOnce(verifier), 64U);
  verifier.set_kind("external");
  verifier.set_processes(2);
  verifier.set_in_flight(3);
  EXPECT_EQ(JudgedAtOnce(verifier), 6U);
  verifier.set_processes(100);
  EXPECT_EQ(JudgedAtOnce(verifier), 64U);
}

// Counts the waits.
struct HurriedClock final : Clock {
  absl::Time Now() override { return RealClock().Now(); }
  absl::Duration Monotonic() override { return RealClock().Monotonic(); }
  void Sleep(absl::Duration) override { ++waits; }
  int waits = 0;
};

TEST(JobRollouts, AWorkerThatIsToBeSlowSamplesSlowly) {
  const TinyModel model(ByteConfig());
  const std::unique_ptr<Tokenizer> tokenizer = MakeByteTokenizer();
  v1::JobSpec spec;
  spec.mutable_train()->mutable_rollout()->set_max_new_tokens(8);
  spec.mutable_train()->mutable_verifier()->set_kind("arithmetic");
  FillJobDefaults(spec);
  RolloutOrder order = SomeOrder(2, 1);
  order.judged = false;
  for (const double slow_down : {1, 3}) {
    const auto alone = InProcessGroup(1, absl::Seconds(60));
    HurriedClock clock;
    ProgressBoard board;
    const auto source = OpenJobRollouts(
        {.context = {*alone[0], clock, board}, .slow_down = slow_down}, spec, "", *tokenizer);
    ASSERT_TRUE(source.ok()) << source.status();
    ASSERT_TRUE((*source)->Sample(*model.decoder, order, {}).ok());
    EXPECT_EQ(clock.waits > 0, slow_down > 1);
  }
}

}  // namespace
}  // namespace espalier
