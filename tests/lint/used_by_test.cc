// "Used by ...", on made-up trees.
#include "tests/lint/used_by.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace espalier::lint {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// What is found in a/x.h, whose opening comment says `sentence`; a/x.cc, a/y.cc, b/z.cc and the
// program `prog` include it, the last two through a/w.h; b/none.cc does not.
Problems ProblemsOf(const std::string& sentence) {
  const std::string use = IncludeLine("a/x.h");
  return UsedByProblems(
      MadeUpTree({{"a/x.h", "// X: a thing.\n// " + sentence + "\n#pragma once\n"},
                  {"a/w.h", "// W. Used by b/ and main.cc.\n" + use},
                  {"a/v.cc", ""},
                  {"a/x.cc", use},
                  {"a/y.cc", use},
                  {"b/y.cc", ""},
                  {"b/z.cc", IncludeLine("a/w.h")},
                  {"b/none.cc", ""},
                  {"main.cc", IncludeLine("a/w.h")},
                  {"tests/x_test.cc", use},
                  {"c/CMakeLists.txt", "espalier_program(prog ../main.cc DEPS x)\n"},
                  {"b/CMakeLists.txt", "espalier_program(program z.cc DEPS x)\n"}}));
}

TEST(UsedBy, FilesFoldersAndProgramsThatIncludeTheHeaderAreTrue) {
  for (const char* truth : {"Used by y.cc.", "Used by b/z.cc and tests. One thread.", "Used by b/.",
                            "Used by a/, x's own folder.", "Used by program.", "Used by *y.cc."}) {
    EXPECT_THAT(ProblemsOf(truth), IsEmpty()) << truth;
  }
}

TEST(UsedBy, AHeaderWithoutTheSentenceIsFound) {
  EXPECT_THAT(ProblemsOf("Nice to have."),
              ElementsAre("a/x.h: its opening comment lacks 'Used by ...'"));
}

TEST(UsedBy, ASentenceWithoutACheckableNameIsFound) {
  EXPECT_THAT(ProblemsOf("Used by everybody."), ElementsAre(HasSubstr("names no file, folder or")));
}

TEST(UsedBy, WhoDoesNotIncludeTheHeaderIsFound) {
  EXPECT_THAT(ProblemsOf("Used by none.cc."), ElementsAre(HasSubstr("does not include it")));
  EXPECT_THAT(ProblemsOf("Used by *.cc."), ElementsAre(HasSubstr("does not include it: a/v.cc")));
  EXPECT_THAT(ProblemsOf("Used by c/."), ElementsAre(HasSubstr("no such file or folder")));
  EXPECT_THAT(ProblemsOf("Used by gone.cc."), ElementsAre(HasSubstr("no such file or folder")));
}

// What is found in a/x.h, which a/y.cc, b/z.h and a test include, and b/z.cc through b/z.h.
Problems ProblemsOfSharedHeader(const std::string& sentence) {
  const std::string use = IncludeLine("a/x.h");
  return UsedByProblems(
      MadeUpTree({{"a/x.h", "// X: a thing. " + sentence + "\n"},
                  {"a/y.cc", use},
                  {"b/z.h", "// Z. Used by main.cc.\n" + use},
                  {"b/z.cc", IncludeLine("b/z.h")},
                  {"b/main.cc", IncludeLine("b/z.h")},
                  {"b/CMakeLists.txt", "espalier_program(program main.cc DEPS x)\n"},
                  {"tests/x_test.cc", use}}));
}

TEST(UsedBy, WhoIncludesTheHeaderInAnotherFolderIsNamed) {
  EXPECT_THAT(ProblemsOfSharedHeader("Used by y.cc."),
              ElementsAre("a/x.h: 'Used by ...' leaves out b/z.h"));
  for (const char* whole : {"Used by b/z.h.", "Used by b/z.cc, of the unit that includes it.",
                            "Used by y.cc and b/.", "Used by program."}) {
    EXPECT_THAT(ProblemsOfSharedHeader(whole), IsEmpty()) << whole;
  }
}

TEST(UsedBy, OnlyMeansNobodyElseButTests) {
  EXPECT_THAT(ProblemsOf("Used by a/ only."), IsEmpty());
  EXPECT_THAT(ProblemsOf("Used by z.cc only."),
              ElementsAre(HasSubstr("a/w.h includes it"), HasSubstr("a/y.cc includes it")));
}

}  // namespace
}  // namespace espalier::lint
