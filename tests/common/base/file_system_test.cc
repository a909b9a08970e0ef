#include "common/base/file_system.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class FileSystemTest : public ::testing::Test {
 protected:
  FileSystemTest() {
    std::string name = ::testing::TempDir() + "espalier-files-XXXXXX";
    folder_ = mkdtemp(name.data());
  }
  ~FileSystemTest() override { std::filesystem::remove_all(folder_); }

  std::string Path(const std::string& name) const { return JoinPath(folder_, name); }

  FileSystem& files_ = PosixFileSystem();
  std::string folder_;
};

absl::Span<const std::byte> Bytes(absl::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

TEST_F(FileSystemTest, WhatIsWrittenIsRead) {
  auto file = files_.Create(Path("a"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE((*file)->Append(Bytes("one ")).ok());
  EXPECT_TRUE((*file)->Append(Bytes("two")).ok());
  EXPECT_TRUE((*file)->Sync().ok());
  EXPECT_TRUE((*file)->Close().ok());
  EXPECT_EQ(*files_.Read(Path("a"), 7), "one two");
  EXPECT_EQ(files_.Read(Path("a"), 6).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(FileSystemTest, FoldersAreMadeWithParentsListedInOrderAndRemovedWhole) {
  EXPECT_TRUE(files_.MakeDirectory(Path("x/y")).ok());
  EXPECT_TRUE(files_.MakeDirectory(Path("x/y")).ok());
  EXPECT_TRUE(WriteFileAtomically(files_, Path("x/b"), "").ok());
  EXPECT_TRUE(WriteFileAtomically(files_, Path("x/a"), "").ok());
  EXPECT_THAT(*files_.List(Path("x")), ElementsAre("a", "b", "y"));
  EXPECT_TRUE(files_.Remove(Path("x")).ok());
  EXPECT_TRUE(files_.Remove(Path("x")).ok());
  EXPECT_EQ(files_.List(Path("x")).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(FileSystemTest, AtomicWriteReplacesAndLeavesNoTemporaryFile) {
  EXPECT_TRUE(WriteFileAtomically(files_, Path("f"), "old").ok());
  EXPECT_TRUE(WriteFileAtomically(files_, Path("f"), "new").ok());
  EXPECT_EQ(*files_.Read(Path("f"), 100), "new");
  EXPECT_THAT(*files_.List(folder_), ElementsAre("f"));
}

TEST_F(FileSystemTest, AFailedAtomicWriteKeepsTheOldAndLeavesNoTemporaryFile) {
  ASSERT_TRUE(files_.MakeDirectory(Path("f/inside")).ok());
  EXPECT_FALSE(WriteFileAtomically(files_, Path("f"), "new").ok()) << "a folder is in the way";
  EXPECT_THAT(*files_.List(folder_), ElementsAre("f"));
  EXPECT_THAT(*files_.List(Path("f")), ElementsAre("inside"));
}

TEST_F(FileSystemTest, AFolderInThePlaceOfAFileIsBadInput) {
  const absl::Status read = files_.Read(folder_, 10).status();
  EXPECT_TRUE(absl::IsInvalidArgument(read)) << read;
  EXPECT_THAT(std::string(read.message()), HasSubstr("it is a folder; name a file"));
}

TEST_F(FileSystemTest, ErrorsNameTheOperationAndThePath) {
  const absl::Status missing = files_.Read(Path("none"), 1).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("open " + Path("none")));
  EXPECT_THAT(std::string(files_.Rename(Path("p"), Path("q")).message()),
              HasSubstr("rename " + Path("p")));
  EXPECT_THAT(std::string(files_.Create(Path("no/such")).status().message()),
              HasSubstr("create " + Path("no/such")));
}

class HomeTest : public ::testing::Test {
 protected:
  HomeTest() {
    if (const char* home = std::getenv("HOME")) saved_ = home;
    setenv("HOME", "/home/ada", 1);
  }
  ~HomeTest() override { setenv("HOME", saved_.c_str(), 1); }

  std::string saved_;
};

TEST_F(HomeTest, OnlyTheStartOfAPathIsExpanded) {
  EXPECT_EQ(*ExpandHome("~/data"), "/home/ada/data");
  EXPECT_EQ(*ExpandHome("~"), "/home/ada");
  EXPECT_EQ(*ExpandHome("/a/~/b"), "/a/~/b");
  EXPECT_EQ(*ExpandHome(""), "");
}

TEST_F(HomeTest, WithoutTheVariableTheUserDatabaseAnswers) {
  unsetenv("HOME");
  const auto path = ExpandHome("~/data");
  ASSERT_TRUE(path.ok()) << path.status();
  EXPECT_EQ(path->front(), '/');
}

TEST_F(HomeTest, AnotherUsersHomeIsRefused) {
  EXPECT_EQ(ExpandHome("~bob/x").status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace espalier
