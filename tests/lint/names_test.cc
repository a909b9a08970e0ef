// What documents and comments name must exist: paths, files, verbs of deploy/dev and the programs.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>

#include "tests/lint/named_paths.h"

namespace espalier::lint {
namespace {

namespace fs = std::filesystem;
bool ExistsHere(const std::string& path) {
  return fs::exists(fs::path(ESPALIER_SOURCE_DIR) / path);
}

// What the first group of `pattern` matches in the documents.
std::set<std::string> NamedInDocuments(const std::regex& pattern) {
  std::set<std::string> names;
  ForEachMatch(
      Documents(SourceTree()), pattern,
      [&](const SourceFile&, size_t, const std::smatch& match) { names.insert(match[1]); });
  return names;
}

TEST(Names, EveryPathExists) { EXPECT_EQ(AsText(PathProblems(SourceTree(), ExistsHere)), ""); }

TEST(Names, EveryLinkLeadsSomewhere) {
  EXPECT_EQ(AsText(LinkProblems(SourceTree(), ExistsHere)), "");
}

TEST(Names, EveryFileThatACommentNamesExists) { EXPECT_EQ(AsText(NameProblems(SourceTree())), ""); }

TEST(Names, NoCommentSendsTheReaderToADocumentThatIsNotHere) {
  EXPECT_EQ(AsText(SectionProblems(SourceTree())), "");
}

// The verbs of deploy/dev: the labels of the last `case` of the script, less digits at their end.
std::set<std::string> DevVerbs() {
  static const std::regex label(R"(^  ([a-z| *-]+)\)( .*)?)");
  static const std::regex word("[a-z][a-z-]*");
  std::set<std::string> verbs;
  for (const SourceFile& file : SourceTree()) {
    if (file.path != "deploy/dev") continue;
    for (const std::string& line : file.lines) {
      if (StartsWith(line, "case \"$verb\"")) verbs.clear();
      std::smatch match;
      if (!std::regex_match(line, match, label)) continue;
      const std::string labels = match[1];
      for (std::sregex_iterator it(labels.begin(), labels.end(), word), end; it != end; ++it) {
        verbs.insert(it->str());
      }
    }
  }
  return verbs;
}

TEST(Names, EveryDevVerbExists) {
  const std::set<std::string> verbs = DevVerbs();
  EXPECT_GT(verbs.size(), 5u) << "the verbs of deploy/dev were not found";
  const std::set<std::string> named = NamedInDocuments(std::regex(R"(deploy/dev ([a-z-]+))"));
  EXPECT_GT(named.size(), 3u) << "the pattern no longer finds the verbs in documents";
  for (const std::string& verb : named) EXPECT_TRUE(verbs.count(verb)) << "deploy/dev " << verb;
}

TEST(Names, TheHelpOfDevTellsEveryVerb) {
  static const std::regex line(R"(^  ([a-z-]+)[0-9]*( .*)?)");
  std::set<std::string> told;
  for (const SourceFile& file : SourceTree()) {
    if (file.path != "deploy/dev") continue;
    for (const std::string& text : file.lines) {
      std::smatch match;
      if (std::regex_match(text, match, line)) told.insert(match[1]);
      if (text == "END") break;
    }
  }
  for (const std::string& verb : DevVerbs()) {
    EXPECT_TRUE(told.count(verb) || verb == "help" || verb == "h") << verb;
  }
}

// Runs `program verb --help` for every verb that a document shows on a line of its own.
void ExpectVerbsWork(const std::string& program, const std::regex& pattern) {
  const char* bin = std::getenv("ESPALIER_BIN");
  ASSERT_NE(bin, nullptr) << "ESPALIER_BIN must name the folder of the programs";
  const std::set<std::string> verbs = NamedInDocuments(pattern);
  EXPECT_GE(verbs.size(), 2u) << "the pattern no longer finds the verbs of " << program;
  for (const std::string& verb : verbs) {
    const std::string command =
        std::string(bin) + "/" + program + " " + verb + " --help > /dev/null";
    EXPECT_EQ(std::system(command.c_str()), 0) << command;
  }
}

TEST(Names, EveryVerbOfTheCliExists) {
  ExpectVerbsWork("espalier", std::regex(R"(^\s*(?:\$ )?espalier ([a-z][a-z-]*)\b)"));
}

TEST(Names, EveryVerbOfTheWorkerExists) {
  ExpectVerbsWork("espalier-worker", std::regex(R"(^\s*(?:\$ )?espalier-worker ([a-z][a-z-]*)\b)"));
}

// What Finder and editors leave in a folder that they open.
bool IsOfThisMachine(const std::string& name) {
  return name == ".DS_Store" || name == ".idea" || name == ".vscode";
}

TEST(Layout, WhatIsOfOnesMachineIsNoPartOfTheRepository) {
  std::ifstream file(std::string(ESPALIER_SOURCE_DIR) + "/.gitignore");
  const std::string ignored(std::istreambuf_iterator<char>(file), {});
  for (const char* name : {".DS_Store", ".idea", ".vscode"}) {
    EXPECT_TRUE(IsOfThisMachine(name)) << name;
    EXPECT_NE(ignored.find(std::string("\n") + name + "\n"), std::string::npos) << name;
  }
}

TEST(Layout, TheTopLevelHoldsWhatWasAgreed) {
  const std::set<std::string> agreed{
      ".ci",    ".clang-format", ".clang-tidy",    ".git",        ".github", ".gitignore",
      ".cache", "common",        "CMakeLists.txt", "coordinator", "worker",  "proto",
      "deploy", "configs",       "tests",          "README.md"};
  for (const auto& entry : fs::directory_iterator(ESPALIER_SOURCE_DIR)) {
    const std::string name = entry.path().filename().string();
    if (StartsWith(name, "build") || StartsWith(name, "LICENSE")) continue;
    if (IsOfThisMachine(name)) continue;
    EXPECT_TRUE(agreed.count(name)) << name;
  }
}

}  // namespace
}  // namespace espalier::lint
