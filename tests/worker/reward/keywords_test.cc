// The program of configs/verifiers, which people start theirs from.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "worker/reward/external_verifier.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

TEST(Keywords, JudgesAndSaysOfAnotherRecordWhatItLacks) {
  const auto verifier = StartExternalVerifier(
      {.command = {"python3", ESPALIER_SOURCE_DIR "/configs/verifiers/keywords.py"},
       .time_limit = absl::Seconds(60),
       .call_limit = absl::InfiniteDuration()});
  const auto judged = (*verifier)->Judge(
      {{R"({"wanted": ["text"]})", "a text"}, {R"({"wanted": ["text", "word"]})", "a text"}}, {});
  ASSERT_TRUE(judged.ok()) << judged.status();
  EXPECT_TRUE((*judged)[0].accepted());
  EXPECT_EQ((*judged)[0].total, 1);
  EXPECT_EQ((*judged)[1].component("wanted"), 0.5);
  EXPECT_THAT((*judged)[1].invalid, HasSubstr("word"));
  for (const char* other : {R"({"answer": 36})", R"({"wanted": "text"})"}) {
    const absl::Status refused = (*verifier)->Judge({{other, "36"}}, {}).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("'wanted', a list of words"));
  }
}

}  // namespace
}  // namespace espalier
