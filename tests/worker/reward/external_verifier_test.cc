// Programs of the user's that judge, sound ones and all others: real processes.
#include "worker/reward/external_verifier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "tests/worker/support/test_folder.h"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kHead[] = "import json, os, signal, sys, time\n";
// Reads requests one by one as `r`, with the record as `d`, and answers them by `say`.
constexpr char kLoop[] =
    "def say(id, total, **more): print(json.dumps({'id': id, 'total': total, **more}), "
    "flush=True)\n"
    "for line in sys.stdin:\n"
    "  r = json.loads(line); d = r['record']\n";

class External : public ::testing::Test {
 protected:
  // Of a Python program: what it does with each request.
  ExternalVerifierOptions Program(const std::string& body) {
    const std::string path = folder_.Write(absl::StrCat("judge", ++programs_, ".py"), body);
    return {.command = {"python3", path},
            .folder = folder_.path(),
            .time_limit = absl::Seconds(60),
            .first_back_off = absl::Milliseconds(1),
            .call_limit = absl::InfiniteDuration()};
  }
  ExternalVerifierOptions Answering(const std::string& body) {
    return Program(absl::StrCat(kHead, kLoop, "  ", body, "\n"));
  }

  static absl::StatusOr<std::vector<Judgement>> Judge(Verifier& verifier,
                                                      const std::vector<std::string>& records,
                                                      TrainingMoment moment = {}) {
    std::vector<Completion> completions;
    for (const std::string& record : records) completions.push_back({record, "text"});
    return verifier.Judge(completions, moment);
  }
  // Totals of records {"n": 0} and so on.
  static std::vector<double> Totals(Verifier& verifier, int count) {
    std::vector<std::string> records;
    for (int n = 0; n < count; ++n) records.push_back(absl::StrCat("{\"n\": ", n, "}"));
    const auto judged = Judge(verifier, records);
    EXPECT_TRUE(judged.ok()) << judged.status();
    std::vector<double> totals;
    if (judged.ok()) {
      for (const Judgement& one : *judged) totals.push_back(one.total);
    }
    return totals;
  }
  // How a call of one completion fails.
  absl::Status Failure(ExternalVerifierOptions options) {
    const auto verifier = StartExternalVerifier(std::move(options));
    EXPECT_TRUE(verifier.ok()) << verifier.status();
    return Judge(**verifier, {"{}"}).status();
  }
  // Processes that the programs have named in the file "pids" and that live.
  std::set<int64_t> Living() {
    std::set<int64_t> living;
    std::stringstream lines(ReadText(folder_ / "pids"));
    for (std::string line; std::getline(lines, line);) {
      int64_t pid = 0;
      if (absl::SimpleAtoi(line, &pid) && kill(static_cast<pid_t>(pid), 0) == 0) living.insert(pid);
    }
    return living;
  }
  // Grandchildren that were killed may wait for a moment to be reaped by others.
  bool NobodyIsLeft() {
    for (int i = 0; i < 5000 && !Living().empty(); ++i) RealClock().Sleep(absl::Milliseconds(2));
    return Living().empty();
  }

  TestFolder folder_;
  int programs_ = 0;
};

TEST_F(External, IsToldAllAndItsAnswerIsTheJudgement) {
  const auto verifier = StartExternalVerifier(Answering(
      "print(json.dumps({'id': r['id'], 'components': {'a': d['x'], 'step': r['step']}, 'invalid': "
      "r['completion'] + str(r['progress'])}), flush=True)"));
  ASSERT_TRUE(verifier.ok()) << verifier.status();
  const auto judged = Judge(**verifier, {"{\"x\": 0.5}"}, {.step = 7, .progress = 0.25});
  ASSERT_TRUE(judged.ok()) << judged.status();
  const Judgement& one = judged->front();
  EXPECT_THAT(one.components, ElementsAre(RewardComponent{"a", 0.5}, RewardComponent{"step", 7}));
  EXPECT_EQ(one.total, 7.5);
  EXPECT_EQ(one.invalid, "text0.25");
}

TEST_F(External, TakesATotalThatIsNotTheSum) {
  const auto verifier =
      StartExternalVerifier(Answering("say(r['id'], 3, components={'a': 1}, invalid=None)"));
  const auto judged = Judge(**verifier, {"{}"});
  ASSERT_TRUE(judged.ok()) << judged.status();
  EXPECT_EQ(judged->front().total, 3);
  EXPECT_TRUE(judged->front().accepted());
}

TEST_F(External, AnswersInAnyOrderBelongToTheirRequests) {
  ExternalVerifierOptions options = Program(absl::StrCat(
      kHead,
      "held = []\n"
      "for line in sys.stdin:\n"
      "  held.append(json.loads(line))\n"
      "  if len(held) == 4:\n"
      "    for r in reversed(held): print(json.dumps({'id': r['id'], 'total': r['record']['n']}), "
      "flush=True)\n"
      "    held = []\n"));
  options.in_flight = 4;
  const auto verifier = StartExternalVerifier(options);
  EXPECT_THAT(Totals(**verifier, 8), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
}

TEST_F(External, SeveralProcessesShareTheWork) {
  // Nobody answers before two processes have a request.
  ExternalVerifierOptions options = Answering(
      "open('seen-' + str(os.getpid()), 'w').close()\n"
      "  while sum(n.startswith('seen-') for n in os.listdir('.')) < 2: time.sleep(0.005)\n"
      "  say(r['id'], d['n'])");
  options.processes = 2;
  const auto verifier = StartExternalVerifier(options);
  EXPECT_THAT(Totals(**verifier, 6), ElementsAre(0, 1, 2, 3, 4, 5));
}

TEST_F(External, LargeTextsGoThroughWhileItWrites) {
  ExternalVerifierOptions options = Answering(
      "print('x' * 100000, file=sys.stderr); say(r['id'], len(r['completion']), invalid='y' * "
      "200000)");
  options.in_flight = 8;
  const auto verifier = StartExternalVerifier(options);
  const std::string text(300000, 'z');
  const std::vector<Completion> completions(10, Completion{"{}", text});
  const auto judged = (*verifier)->Judge(completions, {});
  ASSERT_TRUE(judged.ok()) << judged.status();
  for (const Judgement& one : *judged) EXPECT_EQ(one.total, 300000);
}

TEST_F(External, AProcessThatIsKilledIsStartedAgainAndNothingIsLost) {
  // Each process kills itself in the middle of its second request.
  const auto verifier = StartExternalVerifier(
      Program(absl::StrCat(kHead, "count = 0\n", kLoop,
                           "  count += 1\n"
                           "  if count == 2: os.kill(os.getpid(), signal.SIGKILL)\n"
                           "  say(r['id'], d['n'])\n")));
  EXPECT_THAT(Totals(**verifier, 5), ElementsAre(0, 1, 2, 3, 4));
}

TEST_F(External, ACompletionThatEndsItsProcessTwiceIsGivenUp) {
  ExternalVerifierOptions options = Answering(
      "if d['n'] == 1: print('cannot judge this', file=sys.stderr); sys.exit(3)\n"
      "  say(r['id'], d['n'])");
  options.in_flight = 3;
  options.failed_reward = -7;
  const auto verifier = StartExternalVerifier(options);
  const auto judged = Judge(**verifier, {"{\"n\": 0}", "{\"n\": 1}", "{\"n\": 2}"});
  ASSERT_TRUE(judged.ok()) << judged.status();
  EXPECT_EQ((*judged)[0].total, 0);
  EXPECT_EQ((*judged)[1].total, -7);
  EXPECT_THAT((*judged)[1].invalid,
              AllOf(HasSubstr("exit code 3"), HasSubstr("cannot judge this")));
  EXPECT_EQ((*judged)[2].total, 2);
  EXPECT_TRUE((*judged)[2].accepted());
}

TEST_F(External, ACompletionThatIsNeverAnsweredIsGivenUpAfterItsTime) {
  ExternalVerifierOptions options = Answering(
      "if d['n'] == 1: time.sleep(1000)\n"
      "  say(r['id'], d['n'])");
  options.time_limit = absl::Milliseconds(1500);
  options.start_limit = absl::Seconds(20);
  const auto verifier = StartExternalVerifier(options);
  const auto judged = Judge(**verifier, {"{\"n\": 0}", "{\"n\": 1}", "{\"n\": 2}"});
  ASSERT_TRUE(judged.ok()) << judged.status();
  EXPECT_THAT((*judged)[1].invalid, HasSubstr("no answer within 1.5s"));
  EXPECT_EQ((*judged)[2].total, 2);
}

TEST_F(External, OnlyTheOneThatHangsIsGivenUpAmongManyInFlight) {
  ExternalVerifierOptions options = Answering(
      "if d['n'] == 2: time.sleep(1000)\n"
      "  say(r['id'], d['n'])");
  options.time_limit = absl::Milliseconds(1500);
  options.start_limit = absl::Seconds(20);
  options.in_flight = 5;
  const auto verifier = StartExternalVerifier(options);
  EXPECT_THAT(Totals(**verifier, 5), ElementsAre(0, 1, 0, 3, 4));
}

TEST_F(External, AnAnswerThatComesTooLateIsNobodysElse) {
  // A child of the program would answer this request and the next ones when it is too late.
  ExternalVerifierOptions options = Answering(
      "if d['n'] == 0 and os.fork() == 0:\n"
      "    time.sleep(2.5)\n"
      "    for id in range(10): say(id, 99)\n"
      "    os._exit(0)\n"
      "  if d['n'] == 0: time.sleep(1000)\n"
      "  if d['n'] == 2: time.sleep(1.5)\n"
      "  say(r['id'], d['n'])");
  options.time_limit = absl::Seconds(2);
  options.start_limit = absl::Seconds(60);
  const auto verifier = StartExternalVerifier(options);
  const auto judged = Judge(**verifier, {"{\"n\": 1}", "{\"n\": 0}", "{\"n\": 2}"});
  ASSERT_TRUE(judged.ok()) << judged.status();
  EXPECT_EQ((*judged)[0].total, 1);
  EXPECT_FALSE((*judged)[1].accepted());
  EXPECT_EQ((*judged)[1].total, 0);
  EXPECT_EQ((*judged)[2].total, 2);
}

// Of a service that it asks, say: more ends in a row than a program has that never works.
TEST_F(External, OutlastsAnOutageOfAProgramThatHasAnswered) {
  // From its second request on it ends at once, nine times.
  ExternalVerifierOptions options = Program(absl::StrCat(
      kHead,
      "def tries(): return os.path.getsize('tries') if os.path.exists('tries') else 0\n"
      "if os.path.exists('answered') and tries() < 9:\n"
      "  open('tries', 'a').write('x'); sys.exit('no route to host')\n",
      kLoop,
      "  if os.path.exists('answered') and tries() < 9: sys.exit('no route to host')\n"
      "  say(r['id'], d['n']); open('answered', 'w').close()\n"));
  const auto verifier = StartExternalVerifier(options);
  EXPECT_THAT(Totals(**verifier, 6), ElementsAre(0, 1, 2, 3, 4, 5))
      << "no completion is the reason, and none is given up";
  EXPECT_EQ(ReadText(folder_ / "tries"), "xxxxxxxxx");
}

TEST_F(External, GivesUpAfterAnOutageThatLastsTooLong) {
  ExternalVerifierOptions options = Answering(
      "open('answered', 'w').close() if d['n'] == 0 else sys.exit('no route to host')\n"
      "  say(r['id'], d['n'])");
  options.command = {
      "/bin/sh", "-c",
      absl::StrCat("[ ! -e answered ] || exit 4; exec python3 ", options.command[1])};
  options.start_limit = absl::Milliseconds(50);
  const auto verifier = StartExternalVerifier(options);
  const absl::Status failure = Judge(**verifier, {"{\"n\": 0}", "{\"n\": 1}"}).status();
  EXPECT_EQ(failure.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(failure.message()),
              AllOf(HasSubstr("times in a row"), HasSubstr("exit code 4")));
}

// Nothing else is there that could show that the program works.
TEST_F(External, ACompletionThatEndsItsProcessIsGivenUpThoughItIsTheLast) {
  const auto verifier =
      StartExternalVerifier(Answering("if d['n'] == 2: sys.exit(3)\n  say(r['id'], d['n'])"));
  const auto judged = Judge(**verifier, {"{\"n\": 0}", "{\"n\": 1}", "{\"n\": 2}"});
  ASSERT_TRUE(judged.ok()) << judged.status();
  EXPECT_EQ((*judged)[1].total, 1);
  EXPECT_THAT((*judged)[2].invalid, HasSubstr("exit code 3"));
  // Also where all of a call are so: more ends than a broken program has.
  const auto all = Judge(**verifier, std::vector<std::string>(4, "{\"n\": 2}"));
  ASSERT_TRUE(all.ok()) << all.status();
  for (const Judgement& one : *all) EXPECT_THAT(one.invalid, HasSubstr("exit code 3"));
}

TEST_F(External, ABrokenProgramMakesTheCallFailWithWhatItSaid) {
  ExternalVerifierOptions options = Program("import sys\nsys.exit('no module named rewards')\n");
  const auto verifier = StartExternalVerifier(options);
  const absl::Status failure = Judge(**verifier, {"{}"}).status();
  EXPECT_EQ(failure.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(failure.message()),
              AllOf(HasSubstr("5 times in a row"), HasSubstr("exit code 1"),
                    HasSubstr("no module named rewards")));
}

TEST_F(External, ALineThatIsNoAnswerIsShownWithWhatIsWrong) {
  const std::pair<const char*, const char*> cases[] = {
      {"print('debug: ok', flush=True)", "it is no JSON object. The line: 'debug: ok'"},
      {"print('[1]', flush=True)", "no JSON object"},
      {"print('[' * 1000, flush=True)", "nests deeper"},
      {"print('{}', flush=True)", "no 'id'"},
      {"say('x', 1)", "no 'id'"},
      {"say(r['id'] + 1, 1)", "nothing with the id 2"},
      {"say(r['id'], 'much')", "'total' is \"much\""},
      {"print(json.dumps({'id': r['id'], 'components': {'a': 1e308, 'b': 1e308}}), flush=True)",
       "add up to no finite number"},
      {"say(r['id'], float('nan'))", "JSON has no NaN and no Infinity; answer a finite number"},
      {"say(r['id'], 1, reward=2)", "it has 'reward'"},
      {"say(r['id'], 1, components=[1])", "no object of numbers"},
      {"say(r['id'], 1, components={'a': None})", "component 'a'"},
      {"say(r['id'], 1, invalid=False)", "no text"},
      {"print(json.dumps({'id': r['id'], 'error': 'no wanted'}), flush=True)",
       "it cannot judge: no wanted"},
      {"print(json.dumps({'id': r['id']}), flush=True)", "neither 'total' nor 'components'"},
      {"sys.stdout.buffer.write(b'\\xff\\xfe\\n'); sys.stdout.flush()", "\\xff\\xfe"},
      {"print('x' * 3000000, flush=True)", "longer than 1 MiB"}};
  for (const auto& [body, why] : cases) {
    const absl::Status failure = Failure(Answering(body));
    EXPECT_EQ(failure.code(), absl::StatusCode::kInvalidArgument) << body;  // it ends the job
    EXPECT_THAT(std::string(failure.message()), AllOf(HasSubstr(why), HasSubstr("judge"))) << body;
  }
}

TEST_F(External, ASecondAnswerIsNoAnswer) {
  const auto verifier =
      StartExternalVerifier(Answering("say(r['id'], 1); say(r['id'], 2); time.sleep(0.1)"));
  EXPECT_THAT(std::string(Judge(**verifier, {"{}", "{}", "{}"}).status().message()),
              HasSubstr("answered already"));
}

TEST_F(External, GoesOnAfterACallThatFailed) {
  const auto verifier = StartExternalVerifier(
      Answering("print('oops', flush=True) if d.get('bad') else say(r['id'], 5)"));
  EXPECT_FALSE(Judge(**verifier, {"{\"bad\": true}", "{}"}).ok());
  const auto judged = Judge(**verifier, {"{}"});
  ASSERT_TRUE(judged.ok()) << judged.status();
  EXPECT_EQ(judged->front().total, 5);
  EXPECT_FALSE(Judge(**verifier, {"no record"}).ok());
  EXPECT_TRUE(Judge(**verifier, {})->empty());
}

TEST_F(External, IsGivenTextThatIsNotUtf8WithReplacements) {
  const auto verifier =
      StartExternalVerifier(Answering("say(r['id'], 1, invalid=ascii(r['completion']))"));
  const auto judged = (*verifier)->Judge({{"{}", "a\xFF\nb"}}, {});
  ASSERT_TRUE(judged.ok()) << judged.status();
  EXPECT_EQ(judged->front().invalid, "'a\\ufffd\\nb'");
}

TEST_F(External, LeavesNobodyBehind) {
  const std::string name_itself = "open('pids', 'a').write(str(os.getpid()) + '\\n')\n";
  {
    ExternalVerifierOptions options = Program(
        absl::StrCat(kHead, "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nos.fork()\n",
                     name_itself, kLoop, "  say(r['id'], 1)\n",
                     "time.sleep(1000)\n"));  // does not end with its input, nor does its child
    options.processes = 2;
    options.end_limit = absl::Milliseconds(50);
    const auto verifier = StartExternalVerifier(options);
    ASSERT_TRUE(verifier.ok()) << verifier.status();
    for (int i = 0; i < 5000 && Living().size() < 4; ++i) RealClock().Sleep(absl::Milliseconds(2));
    EXPECT_EQ(Living().size(), 4u);
  }
  EXPECT_TRUE(NobodyIsLeft());
}

TEST_F(External, ASoundProgramEndsByItself) {
  {
    ExternalVerifierOptions options = Program(absl::StrCat(
        kHead, kLoop, "  say(r['id'], 1)\n", "open('ended', 'w').write('by itself')\n"));
    options.end_limit = absl::Seconds(60);
    const auto verifier = StartExternalVerifier(options);
    EXPECT_THAT(Totals(**verifier, 1), ElementsAre(1));
  }
  EXPECT_EQ(ReadText(folder_ / "ended"), "by itself");
}

TEST_F(External, WhatCannotBeStartedIsRefused) {
  EXPECT_THAT(std::string(StartExternalVerifier({.command = {"no-such-judge"}}).status().message()),
              HasSubstr("no-such-judge"));
  EXPECT_FALSE(StartExternalVerifier({}).ok());
  EXPECT_FALSE(StartExternalVerifier({.command = {"cat"}, .processes = 0}).ok());
  EXPECT_FALSE(StartExternalVerifier({.command = {"cat"}, .in_flight = 5000}).ok());
  EXPECT_FALSE(StartExternalVerifier({.command = {"cat"}, .time_limit = absl::Seconds(0)}).ok());
  EXPECT_FALSE(StartExternalVerifier({.command = {"cat"}, .failures_max = 0}).ok());
}

TEST_F(External, WhatCannotBeStartedIsRefusedWithWhatToDo) {
  const auto refusal = [](ExternalVerifierOptions options) {
    return std::string(StartExternalVerifier(std::move(options)).status().message());
  };
  EXPECT_THAT(
      refusal({.command = {"cat"}, .folder = folder_ / "none"}),
      AllOf(HasSubstr("none' does not exist on this machine"), HasSubstr("train.verifier.folder")));
  EXPECT_THAT(refusal({.command = {"python3 judge.py"}}), HasSubstr("[python3, judge.py]"));
  EXPECT_THAT(refusal({.command = {folder_.Write("judge", "#!/bin/cat\n")}}),
              HasSubstr("chmod +x"));
}

}  // namespace
}  // namespace espalier
