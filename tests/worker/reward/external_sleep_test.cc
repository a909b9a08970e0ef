// A machine that sleeps, or that freezes a worker and its user's verifier together, while the
// program owes an answer: real processes, and a clock that counts the sleep.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/clock.h"
#include "tests/worker/support/test_folder.h"
#include "worker/reward/external_verifier.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

// Reads requests of records {"n": n}, of which it notes each.
constexpr char kShell[] = R"sh(
say() { printf '{"id": %s, "total": %s}\n' "$id" "$1"; }
while read -r line; do
  id=${line#*:}; id=${id%%,*}
  n=${line#*'"n":'}; n=${n%%\}*}
  echo $$ >> asked
)sh";

// As of a Mac that wakes up.
class LeapingClock : public Clock {
 public:
  absl::Time Now() override { return RealClock().Now(); }
  absl::Duration Monotonic() override {
    ++looks_;
    return RealClock().Monotonic() + absl::Hours(slept_hours_.load());
  }
  void Sleep(absl::Duration duration) override { RealClock().Sleep(duration); }
  void Leap() { ++slept_hours_; }
  int64_t looks() const { return looks_; }

 private:
  std::atomic<int64_t> slept_hours_{0};
  std::atomic<int64_t> looks_{0};
};

template <typename Condition>
bool WaitFor(const Condition& condition) {
  for (int i = 0; i < 20'000 && !condition(); ++i) RealClock().Sleep(absl::Milliseconds(1));
  return condition();
}

class ExternalSleep : public ::testing::Test {
 protected:
  // Of a shell program that has answered once: what it does with each request.
  void Start(const std::string& body, absl::Duration limit) {
    const std::string path =
        folder_.Write("judge.sh", absl::StrCat(kShell, "  ", body, "\ndone\n"));
    auto started = StartExternalVerifier({.command = {"/bin/sh", path},
                                          .folder = folder_.path(),
                                          .time_limit = limit,
                                          .start_limit = absl::Minutes(1),
                                          .failed_reward = -1,
                                          .first_back_off = absl::Microseconds(1),
                                          .call_limit = absl::InfiniteDuration()},
                                         clock_);
    ASSERT_TRUE(started.ok()) << started.status();
    verifier_ = *std::move(started);
    EXPECT_EQ(Judge(0).total, 0);
  }
  Judgement Judge(int n) {
    const std::string record = absl::StrCat("{\"n\": ", n, "}");
    const auto judged = verifier_->Judge({{record, "text"}}, {});
    EXPECT_TRUE(judged.ok()) << judged.status();
    return judged.ok() ? judged->front() : Judgement();
  }
  // The processes that have read a request, one after the other.
  std::vector<std::string> Asked() {
    return absl::StrSplit(ReadText(folder_ / "asked"), '\n', absl::SkipEmpty());
  }

  TestFolder folder_;
  LeapingClock clock_;
  std::unique_ptr<Verifier> verifier_;
};

TEST_F(ExternalSleep, IsNoSilenceOfTheProgram) {
  Start("if [ $n = 1 ]; then while [ ! -e go ]; do sleep 0.01; done; fi; say $n", absl::Minutes(1));
  std::thread sleeper([&] {
    EXPECT_TRUE(WaitFor([&] { return Asked().size() == 2; }));
    const int64_t before = clock_.looks();
    clock_.Leap();
    EXPECT_TRUE(WaitFor([&] { return clock_.looks() > before + 8; }));
    folder_.Write("go", "");
  });
  const Judgement judgement = Judge(1);
  sleeper.join();
  EXPECT_EQ(judgement.total, 1) << judgement.invalid;
  const std::vector<std::string> asked = Asked();
  ASSERT_EQ(asked.size(), 2U);
  EXPECT_EQ(asked[0], asked[1]) << "its process was started again";
}

// The limit is longer than what one look at it may count.
TEST_F(ExternalSleep, LetsTheSilenceOfAMachineThatIsAwakeBeFound) {
  constexpr absl::Duration kLimit = absl::Seconds(1);
  Start("if [ $n = 1 ]; then sleep 3600; fi; say $n", kLimit);
  std::thread sleeper([&] {
    EXPECT_TRUE(WaitFor([&] { return Asked().size() == 2; }));
    clock_.Leap();
  });
  const absl::Duration begin = RealClock().Monotonic();
  const Judgement judgement = Judge(1);
  const absl::Duration took = RealClock().Monotonic() - begin;
  sleeper.join();
  EXPECT_EQ(judgement.total, -1);
  EXPECT_THAT(judgement.invalid, HasSubstr("no answer within 1s"));
  EXPECT_GT(took, kLimit / 2) << "the sleep was counted";
}

// Five ends in a row end a call, but none that come within a minute of being awake.
TEST_F(ExternalSleep, LetsAnOutageLastAsLongAsItMay) {
  Start("if [ -e broken ]; then exit 3; fi; say $n", absl::Minutes(1));
  const std::string broken = folder_.Write("broken", "");
  std::thread sleeper([&] {
    EXPECT_TRUE(WaitFor([&] { return Asked().size() >= 3; })) << "the first has failed";
    clock_.Leap();
    const size_t before = Asked().size();
    EXPECT_TRUE(WaitFor([&] { return Asked().size() >= before + 6; }));
    std::filesystem::remove(broken);
  });
  EXPECT_EQ(Judge(1).total, 1);
  sleeper.join();
}

}  // namespace
}  // namespace espalier
