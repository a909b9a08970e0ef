#include "common/observe/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace espalier {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

constexpr char kTime[] = "[0-9]+-[0-9]+-[0-9]+T[0-9]+:[0-9]+:[0-9]+.[0-9]+Z ";

template <typename Body>
std::string StandardErrorOf(Body body) {
  ::testing::internal::CaptureStderr();
  body();
  return ::testing::internal::GetCapturedStderr();
}

class LogTest : public ::testing::Test {
 protected:
  ~LogTest() override {
    SetLogLevel(LogLevel::kInfo);
    SetLogPrefix("");
  }
};

TEST_F(LogTest, ALineHoldsUtcTimeLevelAndText) {
  EXPECT_THAT(StandardErrorOf([] { LogInfo("step {} %d done"); }),
              MatchesRegex(std::string(kTime) + "info    step \\{\\} %d done\n"));
  EXPECT_THAT(StandardErrorOf([] { LogWarning("w"); }),
              MatchesRegex(std::string(kTime) + "warning w\n"));
}

TEST_F(LogTest, ThePrefixIsOnEveryLineOfAMessage) {
  SetLogPrefix("rank 2%");
  EXPECT_THAT(StandardErrorOf([] { LogError("one\ntwo\n"); }),
              MatchesRegex(std::string(kTime) + "error   \\[rank 2%\\] one\n" + kTime +
                           "error   \\[rank 2%\\] two\n"));
}

TEST_F(LogTest, LowerLevelsAreDropped) {
  EXPECT_EQ(StandardErrorOf([] { LogDebug("hidden"); }), "");
  SetLogLevel(LogLevel::kError);
  EXPECT_EQ(StandardErrorOf([] { LogWarning("hidden"); }), "");
  SetLogLevel(LogLevel::kDebug);
  EXPECT_THAT(StandardErrorOf([] { LogDebug("shown"); }), HasSubstr("shown"));
}

TEST_F(LogTest, ControlCharactersCannotReachTheTerminal) {
  const std::string line = StandardErrorOf([] { LogInfo("a\x1b[31mb\rc\td"); });
  EXPECT_THAT(line, HasSubstr("a\\x1b[31mb\\x0dc\td"));
}

TEST_F(LogTest, LevelsAreParsedByName) {
  EXPECT_EQ(*ParseLogLevel("warning"), LogLevel::kWarning);
  EXPECT_THAT(std::string(ParseLogLevel("loud").status().message()),
              HasSubstr("'loud'; allowed: debug, info, warning, error"));
}

}  // namespace
}  // namespace espalier
