// What READMEs name must exist: paths, verbs of deploy/dev, verbs of the programs.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <regex>
#include <set>

#include "tests/lint/source_tree.h"

namespace espalier::lint {
namespace {

namespace fs = std::filesystem;

std::vector<const SourceFile*> Readmes() {
  std::vector<const SourceFile*> files;
  for (const SourceFile& file : SourceTree()) {
    if (EndsWith(file.path, "README.md")) files.push_back(&file);
  }
  return files;
}

// Calls visit(file, line number, match) for every match of `pattern` in a README.
template <typename Visit>
void ForEachMatch(const std::regex& pattern, Visit visit) {
  for (const SourceFile* file : Readmes()) {
    for (size_t i = 0; i < file->lines.size(); ++i) {
      const std::string& line = file->lines[i];
      for (std::sregex_iterator it(line.begin(), line.end(), pattern), end; it != end; ++it) {
        visit(*file, i + 1, *it);
      }
    }
  }
}

TEST(Readme, EveryPathExists) {
  static const std::regex path(
      R"(\b((coordinator|worker|proto|common|deploy|configs|tests)/[A-Za-z0-9_./-]*[A-Za-z0-9_]))");
  const fs::path root = ESPALIER_SOURCE_DIR;
  int found = 0;
  ForEachMatch(path, [&](const SourceFile& file, size_t line, const std::smatch& match) {
    const std::string named = match[1];
    const char before = match.position() == 0 ? ' ' : file.lines[line - 1][match.position() - 1];
    if (before == '/' || before == '-' || before == '_' || before == '.') return;
    ++found;
    EXPECT_TRUE(fs::exists(root / named) || fs::exists(root / (named + ".h")) ||
                fs::exists(root / FolderOf(file.path) / named))
        << file.path << ":" << line << ": no such path: " << named;
  });
  EXPECT_GT(found, 20) << "the pattern no longer finds the paths";
}

TEST(Readme, EveryLinkLeadsSomewhere) {
  static const std::regex link(R"(\]\(([^)#:]+)(#[^)]*)?\))");
  const fs::path root = ESPALIER_SOURCE_DIR;
  ForEachMatch(link, [&](const SourceFile& file, size_t line, const std::smatch& match) {
    EXPECT_TRUE(fs::exists(root / FolderOf(file.path) / match[1].str()))
        << file.path << ":" << line << ": dead link: " << match[1];
  });
}

TEST(Readme, EveryDevVerbExists) {
  static const std::regex verb(R"(deploy/dev ([a-z]+))");
  const std::set<std::string> verbs{"setup", "build", "test",  "quickstart",
                                    "bench", "lint",  "clean", "help"};
  int found = 0;
  ForEachMatch(verb, [&](const SourceFile& file, size_t line, const std::smatch& match) {
    ++found;
    EXPECT_TRUE(verbs.count(match[1])) << file.path << ":" << line << ": " << match[0];
  });
  EXPECT_GT(found, 3);
}

// Runs `program verb --help` for every verb that a README shows on a line of its own.
void ExpectVerbsWork(const std::string& program, const std::regex& pattern) {
  const char* bin = std::getenv("ESPALIER_BIN");
  ASSERT_NE(bin, nullptr) << "ESPALIER_BIN must name the folder of the programs";
  std::set<std::string> verbs;
  ForEachMatch(pattern, [&](const SourceFile&, size_t, const std::smatch& match) {
    verbs.insert(match[1]);
  });
  EXPECT_GE(verbs.size(), 2u) << "the pattern no longer finds the verbs of " << program;
  for (const std::string& verb : verbs) {
    const std::string command =
        std::string(bin) + "/" + program + " " + verb + " --help > /dev/null";
    EXPECT_EQ(std::system(command.c_str()), 0) << command;
  }
}

TEST(Readme, EveryVerbOfTheCliExists) {
  ExpectVerbsWork("espalier", std::regex(R"(^\s*(?:\$ )?espalier ([a-z]+)\b)"));
}

TEST(Readme, EveryVerbOfTheWorkerExists) {
  ExpectVerbsWork("espalier-worker", std::regex(R"(^\s*(?:\$ )?espalier-worker ([a-z]+)\b)"));
}

TEST(Layout, TheTopLevelHoldsWhatWasAgreed) {
  const std::set<std::string> agreed{"CMakeLists.txt", "coordinator", "worker",
                                     "proto",          "common",      "deploy",
                                     "configs",        "tests",       "README.md"};
  for (const auto& entry : fs::directory_iterator(ESPALIER_SOURCE_DIR)) {
    const std::string name = entry.path().filename().string();
    if (StartsWith(name, ".") || StartsWith(name, "build")) continue;
    EXPECT_TRUE(agreed.count(name)) << name;
  }
}

}  // namespace
}  // namespace espalier::lint
