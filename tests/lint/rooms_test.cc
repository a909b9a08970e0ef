// The checks of rooms, on a made-up layout.
#include "tests/lint/rooms.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace espalier::lint {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

Layout MadeUpLayout() {
  return {
      {.folder = "common", .rooms = {{.folder = "common/base"}}},
      {.folder = "worker",
       .rooms = {{.folder = "worker/tensor", .libraries = {"LibTorch"}},
                 {.folder = "worker/data"},
                 {.folder = "worker/train", .libraries = {"LibTorch"}, .closed = {"worker/data"}}},
       .root_files = {"main"}}};
}

Problems RoomProblemsOf(const std::string& path, const std::string& text) {
  return RoomProblems(MadeUpTree({{path, text},
                                  {"common/base/b.h", ""},
                                  {"worker/tensor/t.h", ""},
                                  {"worker/data/d.h", ""},
                                  {"tests/worker/data/fake.h", ""}}),
                      MadeUpLayout());
}

TEST(Rooms, RoomsBeforeAndCommonOnesMayBeIncluded) {
  EXPECT_THAT(RoomProblemsOf("worker/data/x.cc",
                             IncludeLine("worker/tensor/t.h") + IncludeLine("common/base/b.h")),
              IsEmpty());
}

TEST(Rooms, LaterAndClosedRoomsAndTestsMayNot) {
  const auto refused = ElementsAre(HasSubstr("is not for this room"));
  EXPECT_THAT(RoomProblemsOf("worker/tensor/x.cu", IncludeLine("worker/data/d.h")), refused);
  EXPECT_THAT(RoomProblemsOf("worker/train/x.cc", IncludeLine("worker/data/d.h")), refused);
  EXPECT_THAT(RoomProblemsOf("common/base/x.cc", IncludeLine("worker/data/d.h")), refused);
  EXPECT_THAT(RoomProblemsOf("worker/train/x.cc", IncludeLine("tests/worker/data/fake.h")),
              refused);
}

TEST(Rooms, AFolderOrRootFileThatTheLayoutDoesNotKnowIsRefused) {
  EXPECT_THAT(RoomProblemsOf("worker/misc/x.h", ""), ElementsAre(HasSubstr("no such room")));
  EXPECT_THAT(RoomProblemsOf("worker/data/deep/x.h", ""), ElementsAre(HasSubstr("no such room")));
  EXPECT_THAT(RoomProblemsOf("worker/x.cc", ""), ElementsAre(HasSubstr("no such root file")));
  EXPECT_THAT(RoomProblemsOf("worker/main.cc", IncludeLine("worker/data/d.h")), IsEmpty());
}

TEST(Rooms, IncludesAreWrittenFromTheTop) {
  EXPECT_THAT(RoomProblemsOf("worker/data/x.cc", IncludeLine("d.h")),
              ElementsAre(HasSubstr("no path from the top")));
  EXPECT_THAT(RoomProblemsOf("worker/data/x.cc", IncludeLine("absl/status/status.h")), IsEmpty());
}

TEST(Rooms, ALibraryMayNotComeThroughAHeaderEither) {
  const SourceFiles files = MadeUpTree({{"worker/data/x.cc", IncludeLine("worker/data/x.h")},
                                        {"worker/data/x.h", IncludeLine("worker/tensor/t.h")},
                                        {"worker/tensor/t.h", IncludeLine("<torch/torch.h>")}});
  const auto told = [](const char* path) {
    return AllOf(HasSubstr(path), HasSubstr("LibTorch is not for this room; included in "
                                            "worker/tensor/t.h:1"));
  };
  EXPECT_THAT(LibraryProblems(files, MadeUpLayout()),
              ElementsAre(told("worker/data/x.cc"), told("worker/data/x.h")));
}

TEST(Rooms, ARoomIsCrowdedAboveTheLimit) {
  const SourceFiles files =
      MadeUpTree({{"worker/data/x.h", ""}, {"worker/data/x.cc", ""}, {"worker/data/y.cc", ""}});
  EXPECT_THAT(CrowdedRooms(files, 2), IsEmpty());
  EXPECT_THAT(CrowdedRooms(files, 1), ElementsAre("worker/data: 2 units: x y"));
}

Problems FolderProblemsOf(const std::string& path) {
  return FolderProblems(MadeUpTree({{path, ""}}), MadeUpLayout());
}

TEST(Rooms, FoldersWithFilesOfAnyKindAreInTheLayout) {
  for (const char* known : {"worker/data/x.json", "worker/CMakeLists.txt", "deploy/misc/x.sh"}) {
    EXPECT_THAT(FolderProblemsOf(known), IsEmpty()) << known;
  }
  for (const char* unknown : {"worker/misc/x.json", "worker/misc/x.h", "worker/misc/x"}) {
    EXPECT_THAT(FolderProblemsOf(unknown),
                ElementsAre("worker/misc: the layout knows no such folder"));
  }
  EXPECT_THAT(FolderProblemsOf("common/base/deep/README.md"), SizeIs(1));
}

TEST(Rooms, TestFoldersMirrorRoomsOrHoldData) {
  for (const char* known : {"tests/worker/data/x_test.cc", "tests/worker/x_test.cc",
                            "tests/data/models/tiny/config.json", "tests/CMakeLists.txt"}) {
    EXPECT_THAT(FolderProblemsOf(known), IsEmpty()) << known;
  }
  for (const char* unknown : {"tests/worker/misc/x_test.cc", "tests/worker/misc/x.txt"}) {
    EXPECT_THAT(FolderProblemsOf(unknown),
                ElementsAre("tests/worker/misc: mirrors no folder of the layout"));
  }
}

TEST(Rooms, NoTestLiesInTheFolderOfAllTests) {
  EXPECT_THAT(FolderProblemsOf("tests/x_test.cc"),
              ElementsAre("tests/x_test.cc: belongs into the folder of what it tests"));
}

}  // namespace
}  // namespace espalier::lint
