// What a job says of sampling and judging.
#include "worker/rollout/job_rollouts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace espalier
