// Every source and every test is built: a file that no target knows would rot in silence.
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <string>

#include "tests/lint/source_tree.h"

namespace espalier::lint {
namespace {

// The paths, relative to the repository, that CMake gave to targets, or left out on purpose, when
// this build was configured.
std::set<std::string> BuiltSources() {
  const std::string root = std::string(ESPALIER_SOURCE_DIR) + "/";
  std::set<std::string> built;
  std::ifstream in(ESPALIER_SOURCES_FILE);
  for (std::string line; std::getline(in, line);) {
    if (StartsWith(line, root)) built.insert(line.substr(root.size()));
  }
  return built;
}

Problems UnbuiltSources(const SourceFiles& files, const std::set<std::string>& built) {
  Problems problems;
  for (const SourceFile* file : CppFiles(files)) {
    if (!IsHeader(file->path) && !built.count(file->path)) {
      problems.push_back(file->path + ": is in no target");
    }
  }
  return problems;
}

TEST(BuildTargets, HoldEverySourceAndTest) {
  EXPECT_EQ(AsText(UnbuiltSources(SourceTree(), BuiltSources())), "");
}

// CMake's own 5 s are too short for the first start of a program on macOS: tests/CMakeLists.txt
// gives more, to all.
TEST(BuildTargets, TestsAreDiscoveredWithTimeForAFirstStart) {
  Problems problems;
  bool in_its_place = false;
  for (const SourceFile& file : SourceTree()) {
    if (!EndsWith(file.path, "CMakeLists.txt")) continue;
    for (size_t i = 0; i < file.lines.size(); ++i) {
      if (file.lines[i].find("gtest_discover_tests(") == std::string::npos) continue;
      if (file.path == "tests/CMakeLists.txt" && !in_its_place) {
        in_its_place = true;
      } else {
        problems.push_back(At(file, i) + "use espalier_discover_tests");
      }
    }
  }
  EXPECT_EQ(AsText(problems), "");
  EXPECT_TRUE(in_its_place);
}

TEST(BuildTargets, ASourceInNoTargetIsFound) {
  const SourceFiles files = MadeUpTree({{"a/x.cc", ""}, {"a/y.cu", ""}, {"a/z.h", ""}});
  EXPECT_EQ(AsText(UnbuiltSources(files, {"a/x.cc"})), "\na/y.cu: is in no target");
}

}  // namespace
}  // namespace espalier::lint
