// A call of a user's verifier ends, whatever its program does: real processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "tests/worker/support/test_folder.h"
#include "worker/reward/external_verifier.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

constexpr char kHead[] =
    "import json, os, sys, time\n"
    "def say(id, total): print(json.dumps({'id': id, 'total': total}), flush=True)\n";

class ExternalLimits : public ::testing::Test {
 protected:
  ExternalVerifierOptions Program(const std::string& body) {
    return {.command = {"python3", folder_.Write("judge.py", absl::StrCat(kHead, body))},
            .folder = folder_.path(),
            .time_limit = absl::Seconds(60),
            .first_back_off = absl::Milliseconds(1)};
  }
  // Judged by one call, of records {"n": begin} and so on.
  static std::vector<Judgement> Judge(Verifier& verifier, int begin, int end) {
    std::vector<std::string> records;
    for (int n = begin; n < end; ++n) records.push_back(absl::StrCat("{\"n\": ", n, "}"));
    std::vector<Completion> completions;
    for (const std::string& record : records) completions.push_back({record, "text"});
    auto judged = verifier.Judge(completions, {});
    EXPECT_TRUE(judged.ok()) << judged.status();
    return judged.ok() ? *std::move(judged) : std::vector<Judgement>();
  }

  TestFolder folder_;
};

// So that a pause or a cancel waits for what is in hand, and not for all completions of a step.
TEST_F(ExternalLimits, ALongCallReturnsWithWhatItHasHandedOut) {
  ExternalVerifierOptions options = Program(
      "for line in sys.stdin:\n"
      "  r = json.loads(line); time.sleep(0.05); say(r['id'], r['record']['n'])\n");
  options.call_limit = absl::Milliseconds(200);
  options.processes = 2;
  const auto verifier = StartExternalVerifier(options);
  ASSERT_TRUE(verifier.ok()) << verifier.status();
  constexpr int kAll = 64;
  std::vector<double> totals;
  int calls = 0;
  for (; static_cast<int>(totals.size()) < kAll && calls < kAll; ++calls) {
    for (const Judgement& one : Judge(**verifier, static_cast<int>(totals.size()), kAll)) {
      totals.push_back(one.total);
    }
  }
  ASSERT_EQ(totals.size(), kAll);
  for (int n = 0; n < kAll; ++n) EXPECT_EQ(totals[static_cast<size_t>(n)], n);
  EXPECT_GT(calls, 1);
}

// It hangs, and the next process fails at its start: an outage, each time.
TEST_F(ExternalLimits, ACompletionThatBringsAnOutageAboutEachTimeIsGivenUp) {
  ExternalVerifierOptions options = Program(
      "if os.path.exists('hold'): os.unlink('hold'); sys.exit('the port is taken')\n"
      "for line in sys.stdin:\n"
      "  r = json.loads(line)\n"
      "  if r['record']['n'] == 1: open('hold', 'w').close(); time.sleep(3600)\n"
      "  say(r['id'], 5)\n");
  options.time_limit = absl::Milliseconds(500);
  options.failed_reward = -1;
  const auto verifier = StartExternalVerifier(options);
  ASSERT_TRUE(verifier.ok()) << verifier.status();
  EXPECT_EQ(Judge(**verifier, 0, 1).front().total, 5);
  const std::vector<Judgement> judged = Judge(**verifier, 1, 2);
  ASSERT_EQ(judged.size(), 1U);
  EXPECT_EQ(judged[0].total, -1);
  EXPECT_THAT(judged[0].invalid, HasSubstr("no answer within"));
}

}  // namespace
}  // namespace espalier
