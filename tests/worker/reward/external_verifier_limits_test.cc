// A call of a user's verifier ends, whatever its program does: real processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/clock.h"
#include "tests/worker/support/test_folder.h"
#include "worker/reward/external_verifier.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

// Of a shell program, which starts in a moment: notes each request, of a record {"n": n}; `say`
// answers.
constexpr char kShell[] = R"sh(
say() { printf '{"id": %s, "total": %s}\n' "$id" "$1"; }
while read -r line; do
  id=${line#*:}; id=${id%%,*}
  n=${line#*'"n":'}; n=${n%%\}*}
  echo $$ >> asked
)sh";
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
  // Of a shell program: what it does with each request.
  ExternalVerifierOptions Shell(const std::string& body, absl::Duration limit) {
    const std::string path =
        folder_.Write("judge.sh", absl::StrCat(kShell, "  ", body, "\ndone\n"));
    return {.command = {"/bin/sh", path},
            .folder = folder_.path(),
            .time_limit = limit,
            .start_limit = limit,
            .first_back_off = absl::Microseconds(1),
            .call_limit = absl::InfiniteDuration()};
  }
  // By process, those that shell programs have read.
  std::vector<std::string> Asked() {
    const std::string text =
        std::filesystem::exists(folder_ / "asked") ? ReadText(folder_ / "asked") : "";
    return absl::StrSplit(text, '\n', absl::SkipEmpty());
  }
  bool WaitUntilAsked(size_t times) {
    for (int i = 0; i < 60'000 && Asked().size() < times; ++i) {
      RealClock().Sleep(absl::Milliseconds(1));
    }
    return Asked().size() >= times;
  }
  // How a call of records {"n": 1} and so on ends that is stopped when so many have been read.
  absl::Status Stopped(Verifier& verifier, int count, size_t asked) {
    std::atomic<bool> stop = false;
    std::thread stopper([&] {
      EXPECT_TRUE(WaitUntilAsked(asked));
      stop = true;
    });
    const std::vector<std::string> records = Records(1, count + 1);
    const absl::Status status = verifier.JudgeUntil(OfRecords(records), {}, stop).status();
    stopper.join();
    return status;
  }
  static std::vector<std::string> Records(int begin, int end) {
    std::vector<std::string> records;
    for (int n = begin; n < end; ++n) records.push_back(absl::StrCat("{\"n\": ", n, "}"));
    return records;
  }
  static std::vector<Completion> OfRecords(const std::vector<std::string>& records) {
    std::vector<Completion> completions;
    for (const std::string& record : records) completions.push_back({record, "text"});
    return completions;
  }
  // Judged by one call, of records {"n": begin} and so on.
  static std::vector<Judgement> Judge(Verifier& verifier, int begin, int end) {
    const std::vector<std::string> records = Records(begin, end);
    auto judged = verifier.Judge(OfRecords(records), {});
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

// Not when next something is looked at that shows in no pipe, which cost a fifth of a second each.
TEST_F(ExternalLimits, AnAnswerIsFollowedByTheNextRequestAtOnce) {
  ExternalVerifierOptions options = Shell("say $n", absl::Minutes(1));
  options.call_limit = absl::Seconds(10);
  const auto verifier = StartExternalVerifier(options);
  ASSERT_TRUE(verifier.ok()) << verifier.status();
  EXPECT_EQ(Judge(**verifier, 0, 200).size(), 200U);
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

// What is asked goes from process to process: their number has no part in it.
TEST_F(ExternalLimits, AProgramThatFallsSilentIsGivenUpAfterAFewQuestionsHoweverManyProcesses) {
  ExternalVerifierOptions options =
      Shell("if [ -e silent ]; then sleep 3600; fi; say 5", absl::Milliseconds(300));
  options.processes = 8;
  const auto verifier = StartExternalVerifier(options);
  ASSERT_TRUE(verifier.ok()) << verifier.status();
  EXPECT_EQ(Judge(**verifier, 0, 1).front().total, 5);
  folder_.Write("silent", "");
  folder_.Write("asked", "");
  const std::vector<std::string> records = Records(1, 9);
  const absl::Status failure = (*verifier)->Judge(OfRecords(records), {}).status();
  EXPECT_EQ(failure.code(), absl::StatusCode::kUnavailable) << failure;
  EXPECT_THAT(std::string(failure.message()), HasSubstr("5 times in a row"));
  EXPECT_LE(Asked().size(), 8U + 5) << "each completion, and whether the program works";
}

TEST_F(ExternalLimits, AnAnswerThatStaysInTheProgramIsTakenForSilenceWhichSaysSo) {
  ExternalVerifierOptions options = Program(
      "kept = open(1, 'w')\n"  // whatever PYTHONUNBUFFERED says
      "for line in sys.stdin: print('{\"id\": 1, \"total\": 1}', file=kept)\n");
  options.time_limit = options.start_limit = absl::Milliseconds(500);
  options.failures_max = 1;
  const auto verifier = StartExternalVerifier(options);
  ASSERT_TRUE(verifier.ok()) << verifier.status();
  const absl::Status failure = (*verifier)->Judge({{"{}", "text"}}, {}).status();
  EXPECT_EQ(failure.code(), absl::StatusCode::kUnavailable) << failure;
  EXPECT_THAT(std::string(failure.message()), HasSubstr("flush=True"));
}

TEST_F(ExternalLimits, AProgramThatNeverAnswersIsGivenUpAfterAFewQuestionsHoweverManyProcesses) {
  ExternalVerifierOptions options = Shell("exit 3", absl::Seconds(60));
  options.processes = 8;
  const auto verifier = StartExternalVerifier(options);
  ASSERT_TRUE(verifier.ok()) << verifier.status();
  const absl::Status failure = (*verifier)->Judge({{"{}", "text"}}, {}).status();
  EXPECT_EQ(failure.code(), absl::StatusCode::kUnavailable) << failure;
  EXPECT_LE(Asked().size(), 5U);
}

// Each hangs its process while the other one answers: no failure follows another.
TEST_F(ExternalLimits, CompletionsThatHangOneAfterTheOtherAreNoOutage) {
  ExternalVerifierOptions options =
      Shell("case $line in *hang*) sleep 3600;; esac; say 5", absl::Milliseconds(300));
  options.processes = 2;
  options.failed_reward = -1;
  const auto verifier = StartExternalVerifier(options);
  ASSERT_TRUE(verifier.ok()) << verifier.status();
  EXPECT_EQ(Judge(**verifier, 0, 1).front().total, 5);
  for (int i = 0; i < 8; ++i) {  // the first process has the first, and nothing when it is asked
    const auto judged = (*verifier)->Judge({{"{}", "text"}, {"{}", "hang"}}, {});
    ASSERT_TRUE(judged.ok()) << i << ": " << judged.status();
    EXPECT_EQ((*judged)[1].total, -1);
  }
}

// A program that is slow needs no new start because of a pause; what it says then is out of date.
TEST_F(ExternalLimits, AStopEndsTheCallAndNoProcess) {
  const auto verifier = StartExternalVerifier(
      Shell("while [ ! -e go ]; do sleep 0.01; done; say $n", absl::Seconds(60)));
  ASSERT_TRUE(verifier.ok()) << verifier.status();
  EXPECT_EQ(Stopped(**verifier, 4, 1).code(), absl::StatusCode::kCancelled);
  folder_.Write("go", "");
  const std::vector<Judgement> judged = Judge(**verifier, 10, 13);
  ASSERT_EQ(judged.size(), 3U);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(judged[i].total, 10 + static_cast<double>(i));
  const std::vector<std::string> asked = Asked();
  EXPECT_EQ(asked.size(), 4U);
  EXPECT_EQ(std::set<std::string>(asked.begin(), asked.end()).size(), 1U);
}

TEST_F(ExternalLimits, AStopEndsTheWaitForASilentProgram) {
  // Answers once, and then not before `go` is there.
  ExternalVerifierOptions options = Shell(
      "if [ -e silent ]; then while [ ! -e go ]; do sleep 0.01; done; fi; say 5", absl::Seconds(1));
  options.start_limit = absl::Seconds(60);
  const auto verifier = StartExternalVerifier(options);
  ASSERT_TRUE(verifier.ok()) << verifier.status();
  EXPECT_EQ(Judge(**verifier, 0, 1).front().total, 5);
  folder_.Write("silent", "");
  EXPECT_EQ(Stopped(**verifier, 1, 3).code(), absl::StatusCode::kCancelled)
      << "behind the completion it was asked whether it works";
  folder_.Write("go", "");
  const std::vector<Judgement> judged = Judge(**verifier, 1, 2);
  ASSERT_EQ(judged.size(), 1U);
  EXPECT_TRUE(judged[0].accepted()) << judged[0].invalid;
}

}  // namespace
}  // namespace espalier
