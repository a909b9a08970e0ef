#include "coordinator/service/refusal_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;

class StillClock : public Clock {
 public:
  absl::Time Now() override { return absl::UnixEpoch() + now; }
  absl::Duration Monotonic() override { return now; }
  void Sleep(absl::Duration duration) override { now += duration; }
  absl::Duration now = absl::Hours(1);
};

class Refusals : public ::testing::Test {
 protected:
  std::vector<std::string> Said() { return std::exchange(said_, {}); }

  StillClock clock_;
  std::vector<std::string> said_;
  RefusalLog log_{[this](absl::string_view line) { said_.emplace_back(line); }, clock_};
};

TEST_F(Refusals, AreSaidWhenTheyComeFirst) {
  log_.Add("refused mini");
  log_.Add("refused studio");
  log_.Add("refused mini");
  EXPECT_THAT(Said(), ElementsAre("refused mini", "refused studio"));
}

TEST_F(Refusals, ThatGoOnAreCountedOnceAMinute) {
  for (int second = 0; second < 180; second += 2) {
    log_.Add("refused mini");
    clock_.Sleep(absl::Seconds(2));
  }
  EXPECT_THAT(Said(), ElementsAre("refused mini",
                                  "refused mini (this happened 30 times within the last 1m)",
                                  "refused mini (this happened 30 times within the last 1m)"));
}

TEST_F(Refusals, ThatComeOnceInALongWhileAreSaidEachTime) {
  for (int i = 0; i < 2; ++i) {
    log_.Add("refused mini");
    clock_.Sleep(absl::Hours(1));
  }
  EXPECT_THAT(Said(),
              ElementsAre("refused mini", "refused mini (this happened once within the last 1h)"));
}

TEST_F(Refusals, OfManyKindsTakeBoundedRoom) {
  for (size_t i = 0; i < RefusalLog::kRefusalsMax; ++i) {
    log_.Add(absl::StrCat("refused ", i));
    clock_.Sleep(absl::Milliseconds(1));
  }
  Said();
  log_.Add("refused another");
  log_.Add("refused 1");
  EXPECT_THAT(Said(), ElementsAre("refused another")) << "1 is remembered";
  log_.Add("refused 0");
  EXPECT_THAT(Said(), ElementsAre("refused 0")) << "0 made room";
}

}  // namespace
}  // namespace espalier
