// Who may include what: folder order is dependency order (the table is in layout.cc).
#include <gtest/gtest.h>

#include <regex>

#include "tests/lint/include_graph.h"
#include "tests/lint/rooms.h"

namespace espalier::lint {
namespace {

constexpr size_t kUnitsOfARoom = 25;

TEST(IncludeRules, RoomsIncludeOnlyRoomsBeforeThem) {
  EXPECT_EQ(AsText(RoomProblems(SourceTree(), EspalierLayout())), "");
}

TEST(IncludeRules, EveryLibraryStaysInItsRooms) {
  EXPECT_EQ(AsText(LibraryProblems(SourceTree(), EspalierLayout())), "");
}

TEST(IncludeRules, EveryFolderIsKnownAndTestsMirrorTheRooms) {
  EXPECT_EQ(AsText(FolderProblems(SourceTree(), EspalierLayout())), "");
}

TEST(IncludeRules, RoomsHoldFewUnits) {
  EXPECT_EQ(AsText(CrowdedRooms(SourceTree(), kUnitsOfARoom)), "");
}

TEST(IncludeRules, UnitsDoNotIncludeEachOtherInCircles) {
  EXPECT_EQ(AsText(IncludeGraph(SourceTree()).Cycles()), "");
}

TEST(IncludeRules, MpiIsIncludedInOneFile) {
  Problems files;
  for (const SourceFile* file : NonTestFiles(SourceTree())) {
    for (const Include& include : IncludesOf(*file)) {
      if (include.header == "mpi.h") files.push_back(file->path);
    }
  }
  EXPECT_EQ(files.size(), 1u) << "mpi.h belongs in one .cc of worker/collective: "
                              << ::testing::PrintToString(files);
}

// Lines of non-test files that match `pattern` where `applies` to the path.
template <typename Applies>
Problems LinesLike(const std::regex& pattern, Applies applies) {
  Problems problems;
  for (const SourceFile* file : NonTestFiles(SourceTree())) {
    if (!applies(file->path)) continue;
    for (size_t i = 0; i < file->lines.size(); ++i) {
      if (std::regex_search(file->lines[i], pattern)) {
        problems.push_back(At(*file, i) + file->lines[i]);
      }
    }
  }
  return problems;
}

TEST(IncludeRules, TheCoreIsPure) {
  static const std::regex impure(
      R"(#include ["<](thread|mutex|chrono|fstream|iostream|condition_variable|filesystem|unistd\.h|common/base/clock|absl/time/clock|absl/synchronization|espalier/v1/(worker|operator)))");
  EXPECT_EQ(AsText(LinesLike(impure,
                             [](const std::string& path) {
                               return FolderOf(path) == "coordinator/core" ||
                                      FolderOf(path) == "coordinator/planner";
                             })),
            "");
}

// LibTorch's own of 1.13 is std's later, and its name goes: what is derived from what LibTorch
// takes and returns fits both.
TEST(IncludeRules, NobodyNamesTheOptionalOfAnOldLibTorch) {
  static const std::regex old(R"(\b(c10|at|torch)::(optional|nullopt)\b)");
  Problems problems;
  for (const SourceFile* file : CppFiles(SourceTree())) {
    for (size_t i = 0; i < file->lines.size(); ++i) {
      if (std::regex_search(file->lines[i], old)) problems.push_back(At(*file, i) + file->lines[i]);
    }
  }
  EXPECT_EQ(AsText(problems), "");
}

TEST(IncludeRules, TimeIsReadInOneFile) {
  static const std::regex now(R"(::now\(\)|absl::Now\(\)|\btime\((NULL|nullptr|0)\))");
  EXPECT_EQ(AsText(LinesLike(
                now, [](const std::string& path) { return path != "common/base/clock.cc"; })),
            "");
  EXPECT_FALSE(LinesLike(now, [](const std::string&) { return true; }).empty())
      << "the pattern no longer finds the one place";
}

// Abseil's follow the wall clock in older releases, and those of the standard library where it
// lacks another: SteadyCondition is the one place that knows. A wait of no time asks no clock.
TEST(IncludeRules, BoundedWaitsAreMadeInOneFile) {
  static const std::regex wait(
      R"(\b(AwaitWithTimeout|WaitForNotificationWithTimeout|WaitWithTimeout)\b)"
      R"(|\bwait_(for|until)\((?!std::chrono::seconds\(0\)))");
  EXPECT_EQ(AsText(LinesLike(
                wait, [](const std::string& path) { return path != "common/base/clock.h"; })),
            "");
  EXPECT_FALSE(LinesLike(wait, [](const std::string&) { return true; }).empty())
      << "the pattern no longer finds the one place";
}

}  // namespace
}  // namespace espalier::lint
