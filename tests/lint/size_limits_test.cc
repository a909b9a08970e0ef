// Size limits and habits of the code (hard values; aim well below).
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <regex>

#include "tests/lint/functions.h"
#include "tests/lint/source_tree.h"
#include "tests/lint/used_by.h"

namespace espalier::lint {
namespace {

constexpr size_t kHeaderLines = 150;
constexpr size_t kSourceLines = 400;
constexpr int kFunctionLines = 70;
constexpr size_t kColumns = 100;
constexpr size_t kMainLines = 60;
constexpr int kInterfaceMethods = 8;
constexpr size_t kSmallFileLines = 40;
constexpr size_t kSmallFiles = 95;

TEST(SizeLimits, FilesAreShort) {
  for (const SourceFile* file : CppFiles(SourceTree())) {
    const size_t limit = IsHeader(file->path)              ? kHeaderLines
                         : EndsWith(file->path, "main.cc") ? kMainLines
                                                           : kSourceLines;
    if (StartsWith(file->path, "tests/") && EndsWith(file->path, "main.cc")) continue;
    EXPECT_LE(file->lines.size(), limit) << file->path;
  }
}

TEST(SizeLimits, FunctionsAreShort) {
  for (const SourceFile* file : CppFiles(SourceTree())) {
    for (const FunctionSpan& function : Functions(*file)) {
      EXPECT_LE(function.lines, kFunctionLines)
          << file->path << ":" << function.first_line << ": " << function.signature;
    }
  }
}

TEST(SizeLimits, LinesFitTheColumns) {
  for (const SourceFile* file : CppFiles(SourceTree())) {
    for (size_t i = 0; i < file->lines.size(); ++i) {
      const std::string& line = file->lines[i];
      if (line.find("R\"") != std::string::npos || StartsWith(line, "#include")) continue;
      EXPECT_LE(line.size(), kColumns) << file->path << ":" << i + 1;
    }
  }
}

TEST(SizeLimits, InterfacesAreNarrow) {
  static const std::regex pure(R"(\)\s*(const\s*)?(noexcept\s*)?= 0;)");
  static const std::regex type(R"(^\s*(class|struct) \w+)");
  for (const SourceFile* file : CppFiles(SourceTree())) {
    int methods = 0;
    for (const std::string& line : file->lines) {
      if (std::regex_search(line, type)) methods = 0;
      if (std::regex_search(line, pure)) ++methods;
      EXPECT_LE(methods, kInterfaceMethods) << file->path << ": " << line;
    }
  }
}

TEST(SizeLimits, FewFilesAreSmall) {
  Problems small;
  for (const SourceFile* file : NonTestFiles(SourceTree())) {
    if (file->lines.size() < kSmallFileLines) small.push_back(file->path);
  }
  EXPECT_LE(small.size(), kSmallFiles)
      << "a file is a concept: join what is read together" << AsText(small);
}

TEST(Habits, HeadersOpenWithWhatTheyAre) {
  for (const SourceFile* file : CppFiles(SourceTree())) {
    if (!IsHeader(file->path)) continue;
    ASSERT_FALSE(file->lines.empty()) << file->path;
    EXPECT_TRUE(StartsWith(file->lines.front(), "// ")) << file->path;
    bool once = false;
    for (const std::string& line : file->lines) once = once || line == "#pragma once";
    EXPECT_TRUE(once) << file->path << ": no #pragma once";
  }
}

TEST(Habits, HeadersSayTruthfullyWhoUsesThem) {
  EXPECT_EQ(AsText(UsedByProblems(SourceTree())), "");
}

bool HasWord(const std::string& line, const std::string& word) {
  const auto is_part = [&](size_t at) {
    return at < line.size() &&
           (std::isalnum(static_cast<unsigned char>(line[at])) || line[at] == '_');
  };
  for (size_t at = line.find(word); at != std::string::npos; at = line.find(word, at + 1)) {
    if (!(at > 0 && is_part(at - 1)) && !is_part(at + word.size())) return true;
  }
  return false;
}

TEST(Habits, NothingIsLeftForLater) {
  // Written in pieces, so that this file does not find itself.
  static const std::vector<std::string> words{std::string("TO") + "DO", std::string("FIX") + "ME",
                                              std::string("X") + "XX"};
  static const std::vector<std::string> pieces{std::string("DISA") + "BLED_",
                                               std::string("GTEST_") + "SKIP"};
  Problems problems;
  for (const SourceFile& file : SourceTree()) {
    for (size_t i = 0; i < file.lines.size(); ++i) {
      const std::string& line = file.lines[i];
      const bool found =
          std::any_of(words.begin(), words.end(),
                      [&](const std::string& word) { return HasWord(line, word); }) ||
          std::any_of(pieces.begin(), pieces.end(), [&](const std::string& piece) {
            return line.find(piece) != std::string::npos;
          });
      if (found) problems.push_back(At(file, i) + line);
    }
  }
  EXPECT_EQ(AsText(problems), "");
}

}  // namespace
}  // namespace espalier::lint
