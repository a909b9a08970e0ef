// What the log of a generation says of its end.
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "coordinator/launcher/mpirun.h"
#include "tests/coordinator/scratch_folder.h"

namespace espalier {
namespace {

struct TailCase {
  const char* name;
  const char* log;
  const char* expected;
};

class LastWordsOf : public ::testing::TestWithParam<TailCase> {};

INSTANTIATE_TEST_SUITE_P(
    All, LastWordsOf,
    ::testing::Values(
        TailCase{"Nothing", "", ""}, TailCase{"APlainLine", "one\ntwo\n\n", "two"},
        TailCase{"MpirunNamesTheDead",
                 "step 4\n-----\nmpirun noticed that process rank 1 with PID 0 on node x exited on "
                 "signal 9 (Killed).\n-----\n[rank 0] closing\n",
                 "rank 1 exited on signal 9 (Killed)"},
        TailCase{"PrterunNamesTheDead",
                 "prterun noticed that process rank 0 with PID 77 on node x exited on signal 11 "
                 "(Segmentation fault).\n",
                 "rank 0 exited on signal 11 (Segmentation fault)"},
        TailCase{"DecorationIsSkipped",
                 "[rank 0] error: no data\n-----\nPrimary job  terminated normally, but 1 process "
                 "returned\na non-zero exit code. Per user-direction, the job has been aborted.\n"
                 "-----\n",
                 "[rank 0] error: no data"},
        TailCase{"WhatAMacKeepsFromTheLocalNetworkIsToldSo",
                 "connect() to 10.77.0.1:1024 failed: No route to host (65)\n",
                 "connect() to 10.77.0.1:1024 failed: No route to host (65) (from a Mac: allow its "
                 "agent's terminal in Privacy & Security, Local Network)"},
        TailCase{"ARefusedOptionIsNamed",
                 "espalier-worker: The following argument was not expected: --slow\n"
                 "Run with --help for more information.\n",
                 "espalier-worker: The following argument was not expected: --slow"},
        TailCase{"TheRemoteShellAgentTellsWhatMpirunsAdviceIsAbout",
                 "espalier-agent exec: node left: no such generation\n-----\n"
                 "ORTE was unable to reliably start one or more daemons.\n\n"
                 "* lack of authority to execute on one or more specified nodes.\n-----\nbye\n",
                 "espalier-agent exec: node left: no such generation"},
        TailCase{"AdviceYieldsToAnyLine", "[rank 0] error: no data\n-----\nPlease check.\n-----\n",
                 "[rank 0] error: no data"},
        TailCase{"AWarningYieldsToAdvice",
                 "2026-11-22T15:03:21Z warning [rank 0] cannot attach to espalierd again yet\n"
                 "-----\nPlease check.\n-----\n",
                 "Please check."},
        TailCase{"AdviceIsBetterThanProgressAndBeginsAtItsBeginning",
                 "2026-11-22T15:03:21Z info    [rank 0] step 1\n-----\nORTE has lost "
                 "communication\nwith a remote daemon.\n-----\n",
                 "ORTE has lost communication with a remote daemon."},
        TailCase{"ProgressIsBetterThanNothing", "2026-11-22T15:03:21Z info    [rank 0] step 1\n",
                 "2026-11-22T15:03:21Z info    [rank 0] step 1"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_P(LastWordsOf, SaysWhatMatters) {
  ScratchFolder folder;
  folder.Write("log", GetParam().log);
  EXPECT_EQ(ReadLastWords(folder.path("log")).text, GetParam().expected);
}

TEST(LastWords, NameTheRankThatDiedFirst) {
  ScratchFolder folder;
  folder.Write("log",
               "mpirun noticed that process rank 12 with PID 0 on node x exited on signal 9.\n");
  EXPECT_EQ(ReadLastWords(folder.path("log")).culprit, Rank(12));
  folder.Write("log", "mpirun noticed that process rank x was gone\n");
  EXPECT_EQ(ReadLastWords(folder.path("log")).culprit, std::nullopt);
}

TEST(LastWords, NameTheRankThatExitedFirst) {
  ScratchFolder folder;
  for (const char* name : {"[[57914,1],3]", "[prterun-vm-57914@1,3]"}) {
    folder.Write("log", std::string("-----\nThe first process to do so was:\n\n  Process name: ") +
                            name + "\n  Exit code:    2\n-----\n");
    EXPECT_EQ(ReadLastWords(folder.path("log")).first_exit, Rank(3)) << name;
  }
  folder.Write("log", "Process name: none\n");
  EXPECT_EQ(ReadLastWords(folder.path("log")).first_exit, std::nullopt);
}

TEST(LastWords, TellAdviceFromLinesEvenWhereItsFirstRuleIsTooFarBack) {
  ScratchFolder folder;
  const std::string words(20000, 'x');
  folder.Write("log", absl::StrCat("-----\n", words, "\nPlease check.\n-----\nno data\n"));
  EXPECT_EQ(ReadLastWords(folder.path("log")).text, "no data");
  folder.Write("log", absl::StrCat("no data\n-----\n", words, "\n-----\n"));
  EXPECT_EQ(ReadLastWords(folder.path("log")).text.substr(0, 3), "xxx");
}

TEST(LastWords, AreOfWhatFollows) {
  ScratchFolder folder;
  folder.Write("log", "[rank 0] no data\nbye\n");
  EXPECT_EQ(ReadLastWords(folder.path("log"), 17).text, "bye");
  EXPECT_EQ(ReadLastWords(folder.path("log"), 21).text, "");
  EXPECT_EQ(ReadLastWords(folder.path("log"), 1000).text, "bye") << "it was shortened";
}

TEST(LastWords, OfProgressAndWarningsTellOfNoEnd) {
  ScratchFolder folder;
  for (const char* well : {"", "2026-11-22T15:03:21.042Z info    [rank 0] step 1\n",
                           "2026-11-22T15:03:21.042Z warning [rank 0] attaching again\n"}) {
    folder.Write("log", well);
    EXPECT_FALSE(ReadLastWords(folder.path("log")).tells_of_end) << well;
    folder.Write("log", std::string(well) + "[rank 0] no data\n");
    EXPECT_TRUE(ReadLastWords(folder.path("log")).tells_of_end) << well;
  }
}

TEST(LastWords, AreShort) {
  ScratchFolder folder;
  folder.Write("log", std::string(5000, 'x') + "\n");
  EXPECT_EQ(ReadLastWords(folder.path("log")).text.size(), 300u);
  folder.Write("log", "No route to host" + std::string(5000, 'x') + "\n");
  EXPECT_EQ(ReadLastWords(folder.path("log")).text.size(), 300u);
  EXPECT_EQ(ReadLastWords(folder.path("absent")).text, "");
}

}  // namespace
}  // namespace espalier
