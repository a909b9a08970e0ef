// What documents and comments name, on made-up trees.
#include "tests/lint/named_paths.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/lint/functions.h"

namespace espalier::lint {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

bool OnlyOneExists(const std::string& path) { return path == "worker/x.h" || path == "worker"; }

Problems PathsIn(const std::string& path, const std::string& text) {
  return PathProblems(MadeUpTree({{path, text}}), OnlyOneExists);
}

TEST(Names, APathThatExistsMayBeNamedWithoutItsExtension) {
  EXPECT_THAT(PathsIn("README.md", "see `worker/x.h`, worker/x and worker/*.cc"), IsEmpty());
}

TEST(Names, AMissingPathIsFoundInDocumentsAndComments) {
  EXPECT_THAT(PathsIn("README.md", "see `worker/y.h`."),
              ElementsAre("README.md:1: no such path: worker/y.h"));
  EXPECT_THAT(PathsIn(".github/A.md", "(worker/y)"),
              ElementsAre(".github/A.md:1: no such path: worker/y"));
  EXPECT_THAT(PathsIn("a.cc", "int x;\nint y;  // as worker/y.h"),
              ElementsAre("a.cc:2: no such path: worker/y.h"));
  EXPECT_THAT(PathsIn("CMakeLists.txt", "# of worker/y.h"),
              ElementsAre("CMakeLists.txt:1: no such path: worker/y.h"));
}

TEST(Names, CodeAndAddressesAreNoPaths) {
  EXPECT_THAT(PathsIn("a.cc", "f(\"worker/y.h\");"), IsEmpty());
  EXPECT_THAT(PathsIn("README.md", "https://example.org/worker/y.h ~/worker/y"), IsEmpty());
}

TEST(Names, ADeadLinkIsFound) {
  const SourceFiles files = MadeUpTree({{"worker/README.md", "[a](x.h) [b](y.h) [c](#here)"}});
  EXPECT_THAT(LinkProblems(files, OnlyOneExists),
              ElementsAre("worker/README.md:1: dead link: y.h"));
}

TEST(Names, ACommentNamesFilesThatThereAre) {
  const SourceFiles files = MadeUpTree(
      {{"a/b.cc", IncludeLine("<lib/known.h>") + "// b.cc, known.h, c.md; gone.cc, gone.md\n"},
       {"c.md", "f.py"}});
  EXPECT_THAT(NameProblems(files), ElementsAre("a/b.cc:2: no file is called gone.cc",
                                               "a/b.cc:2: no file is called gone.md"));
}

TEST(Names, ASectionIsCitedWithItsDocument) {
  const SourceFiles files = MadeUpTree({{"a.cc",
                                         "// Peng et al. 2023, section 3.2\n"
                                         "// RFC 9110, section 4\n\n"
                                         "// as section 5 says\n"
                                         "int section = 5;\n"}});
  EXPECT_EQ(SectionProblems(files).size(), 1u);
  EXPECT_EQ(SectionProblems(MadeUpTree({{"a.cc", "// Architecture 5, step 4\n"}})).size(), 1u);
}

TEST(Functions, AreFoundWhateverTheyReturn) {
  const SourceFile file = MadeUpTree({{"a.cc",
                                       "const X& F(\n    const Y& y) {\n  return y;\n}\n\n"
                                       "const X* G(int i = 1) const {\n  return 0;\n}\n\n"
                                       "const auto f = [](int i) {\n};\n"}})[0];
  const std::vector<FunctionSpan> functions = Functions(file);
  ASSERT_EQ(functions.size(), 2u);
  EXPECT_EQ(functions[0].lines, 4);
  EXPECT_EQ(functions[1].first_line, 6);
}

}  // namespace
}  // namespace espalier::lint
