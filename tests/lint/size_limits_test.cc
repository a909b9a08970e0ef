// Size limits and habits of the code (hard values; aim well below).
#include <gtest/gtest.h>

#include <regex>

#include "tests/lint/source_tree.h"

namespace espalier::lint {
namespace {

constexpr size_t kHeaderLines = 150;
constexpr size_t kSourceLines = 400;
constexpr int kFunctionLines = 70;
constexpr size_t kColumns = 100;
constexpr size_t kMainLines = 60;
constexpr int kInterfaceMethods = 8;

TEST(SizeLimits, FilesAreShort) {
  for (const SourceFile* file : CppFiles()) {
    const size_t limit = EndsWith(file->path, ".h")        ? kHeaderLines
                         : EndsWith(file->path, "main.cc") ? kMainLines
                                                           : kSourceLines;
    if (StartsWith(file->path, "tests/") && EndsWith(file->path, "main.cc")) continue;
    EXPECT_LE(file->lines.size(), limit) << file->path;
  }
}

TEST(SizeLimits, FunctionsAreShort) {
  for (const SourceFile* file : CppFiles()) {
    for (const FunctionSpan& function : Functions(*file)) {
      EXPECT_LE(function.lines, kFunctionLines)
          << file->path << ":" << function.first_line << ": " << function.signature;
    }
  }
}

TEST(SizeLimits, LinesFitTheColumns) {
  for (const SourceFile* file : CppFiles()) {
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
  for (const SourceFile* file : CppFiles()) {
    int methods = 0;
    for (const std::string& line : file->lines) {
      if (std::regex_search(line, type)) methods = 0;
      if (std::regex_search(line, pure)) ++methods;
      EXPECT_LE(methods, kInterfaceMethods) << file->path << ": " << line;
    }
  }
}

TEST(Habits, HeadersOpenWithWhatTheyAre) {
  for (const SourceFile* file : CppFiles()) {
    if (!EndsWith(file->path, ".h")) continue;
    ASSERT_FALSE(file->lines.empty()) << file->path;
    EXPECT_TRUE(StartsWith(file->lines.front(), "// ")) << file->path;
    bool once = false;
    for (const std::string& line : file->lines) once = once || line == "#pragma once";
    EXPECT_TRUE(once) << file->path << ": no #pragma once";
  }
}

TEST(Habits, NothingIsLeftForLater) {
  // Written in pieces, so that this file does not find itself.
  static const std::regex leftover(std::string("\\bTO") + "DO\\b|\\bFIX" + "ME\\b|\\bX" +
                                   "XX\\b|DISA" + "BLED_|GTEST_" + "SKIP");
  for (const SourceFile& file : SourceTree()) {
    for (size_t i = 0; i < file.lines.size(); ++i) {
      EXPECT_FALSE(std::regex_search(file.lines[i], leftover))
          << file.path << ":" << i + 1 << ": " << file.lines[i];
    }
  }
}

}  // namespace
}  // namespace espalier::lint
