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

TEST(BuildTargets, ASourceInNoTargetIsFound) {
  const SourceFiles files = MadeUpTree({{"a/x.cc", ""}, {"a/y.cu", ""}, {"a/z.h", ""}});
  EXPECT_EQ(AsText(UnbuiltSources(files, {"a/x.cc"})), "\na/y.cu: is in no target");
}

}  // namespace
}  // namespace espalier::lint
