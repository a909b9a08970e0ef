#include "common/base/shared_segment.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "common/base/file_system.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

class SharedSegmentTest : public ::testing::Test {
 protected:
  SharedSegmentTest() {
    std::string name = ::testing::TempDir() + "espalier-segments-XXXXXX";
    folder_ = mkdtemp(name.data());
  }
  ~SharedSegmentTest() override {
    for (const RegisteredSegment& one : Listed("studio")) RemoveSegment(registry(), one.name);
    std::filesystem::remove_all(folder_);
  }

  std::string registry() const { return JoinPath(folder_, "warm"); }
  SegmentRecord Record() const {
    return {.job = "nano-1", .node = "studio", .layout = "one", .bytes = 100'000};
  }
  absl::StatusOr<std::unique_ptr<SharedSegment>> Open(const SegmentRecord& record) const {
    return SharedSegment::Open(registry(), record, absl::ZeroDuration());
  }
  std::vector<RegisteredSegment> Listed(const std::string& node) const {
    auto listed = ListSegments(registry(), node);
    EXPECT_TRUE(listed.ok()) << listed.status();
    return listed.ok() ? *std::move(listed) : std::vector<RegisteredSegment>();
  }
  // Writes a text, in a process that is then killed.
  void WriteAndDie(const std::string& text) const {
    const pid_t child = fork();
    if (child == 0) {
      const auto segment = Open(Record());
      if (!segment.ok() || !(*segment)->Reserve(0, 100'000).ok()) _exit(1);
      std::memcpy((*segment)->bytes().data(), text.c_str(), text.size() + 1);
      kill(getpid(), SIGKILL);
    }
    int state = 0;
    waitpid(child, &state, 0);
    ASSERT_TRUE(WIFSIGNALED(state));
  }
  static bool Exists(const std::string& name) {
    const int memory = shm_open(("/" + name).c_str(), O_RDONLY, 0);
    if (memory >= 0) close(memory);
    return memory >= 0;
  }

  std::string folder_;
};

std::string TextIn(const SharedSegment& segment) {
  return reinterpret_cast<const char*>(segment.bytes().data());
}

TEST_F(SharedSegmentTest, OutlivesTheProcessThatWasKilled) {
  WriteAndDie("what was learnt");
  const auto segment = Open(Record());
  ASSERT_TRUE(segment.ok()) << segment.status();
  EXPECT_TRUE((*segment)->found());
  EXPECT_EQ(TextIn(**segment), "what was learnt");
}

TEST_F(SharedSegmentTest, BeginsZeroedUnderANameThatMacOsTakes) {
  const auto segment = Open(Record());
  ASSERT_TRUE(segment.ok()) << segment.status();
  EXPECT_FALSE((*segment)->found());
  EXPECT_LE((*segment)->name().size() + 1, SharedSegment::kLongestName);
  ASSERT_TRUE((*segment)->Reserve(0, 100'000).ok());
  for (const std::byte byte : (*segment)->bytes()) ASSERT_EQ(byte, std::byte{0});
}

TEST_F(SharedSegmentTest, IsMadeAnewForAnotherLayoutOrSize) {
  SegmentRecord layout = Record(), size = Record();
  layout.layout = "two";
  size.bytes += 1;
  for (const SegmentRecord& record : {layout, size}) {
    WriteAndDie("what was learnt");
    const auto segment = Open(record);
    ASSERT_TRUE(segment.ok()) << segment.status();
    EXPECT_FALSE((*segment)->found());
    ASSERT_TRUE((*segment)->Reserve(0, 1).ok());
    EXPECT_EQ(TextIn(**segment), "");
  }
}

TEST_F(SharedSegmentTest, WhoseFileIsGoneIsForgotten) {
  WriteAndDie("what was learnt");
  std::filesystem::remove_all(registry());
  const auto segment = Open(Record());
  ASSERT_TRUE(segment.ok()) << segment.status();
  EXPECT_FALSE((*segment)->found());
}

// As after the machine was started anew.
TEST_F(SharedSegmentTest, AFileWhoseSegmentIsGoneIsTakenOver) {
  WriteAndDie("what was learnt");
  ASSERT_THAT(Listed("studio"), SizeIs(1));
  shm_unlink(("/" + Listed("studio").front().name).c_str());
  const auto segment = Open(Record());
  ASSERT_TRUE(segment.ok()) << segment.status();
  EXPECT_FALSE((*segment)->found());
}

TEST_F(SharedSegmentTest, ATornFileOrAnotherLifesTokenIsNotTrusted) {
  for (const std::string cut : {"end\n", "token"}) {
    WriteAndDie("what was learnt");
    const std::string path = JoinPath(registry(), Listed("studio").front().name);
    std::string text = *PosixFileSystem().Read(path, 10'000);
    text.replace(text.find(cut) + (cut == "token" ? 6 : 0), 1, "x");
    auto file = *PosixFileSystem().Create(path);
    ASSERT_TRUE(file->Append({reinterpret_cast<const std::byte*>(text.data()), text.size()}).ok());
    const auto segment = Open(Record());
    ASSERT_TRUE(segment.ok()) << segment.status();
    EXPECT_FALSE((*segment)->found()) << cut;
  }
}

TEST_F(SharedSegmentTest, IsMadeAnewForAnotherHistory) {
  WriteAndDie("what was learnt");
  SegmentRecord next = Record();
  ++next.history;
  const auto segment = Open(next);
  ASSERT_TRUE(segment.ok()) << segment.status();
  EXPECT_FALSE((*segment)->found());
  EXPECT_EQ(Listed("studio").front().record.history, 1);
}

TEST_F(SharedSegmentTest, ItsMarkIsSeenWhileAProcessHasItAndAfterwards) {
  {
    const auto segment = Open(Record());
    ASSERT_TRUE(segment.ok()) << segment.status();
    EXPECT_EQ(Listed("studio").front().mark, 0);
    (*segment)->set_mark(12);
    EXPECT_EQ(Listed("studio").front().mark, 12);
  }
  EXPECT_EQ(Listed("studio").front().mark, 12);
  const auto again = Open(Record());
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(Listed("studio").front().mark, 12);
}

TEST_F(SharedSegmentTest, AFileWhoseSegmentIsGoneIsListedAsLost) {
  WriteAndDie("what was learnt");
  ASSERT_FALSE(Listed("studio").front().lost);
  shm_unlink(("/" + Listed("studio").front().name).c_str());
  EXPECT_TRUE(Listed("studio").front().lost);
  EXPECT_EQ(Listed("studio").front().mark, 0);
}

TEST_F(SharedSegmentTest, BelongsToOneProcessAtATime) {
  const auto first = Open(Record());
  ASSERT_TRUE(first.ok());
  const auto second = Open(Record());
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.status().message()),
              HasSubstr("process " + std::to_string(getpid())));
  EXPECT_FALSE(RemoveSegment(registry(), (*first)->name())) << "it is in use";
}

TEST_F(SharedSegmentTest, WorkersOfOneNodeHaveTheirOwn) {
  SegmentRecord other = Record();
  other.worker = 1;
  const auto first = Open(Record()), second = Open(other);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_NE((*first)->name(), (*second)->name());
}

TEST_F(SharedSegmentTest, WhatDoesNotFitIsRefusedWithWhatToDo) {
  SegmentRecord record = Record();
  record.bytes = int64_t{1} << 45;
  const auto segment = Open(record);
  const absl::Status reserved =
      segment.ok() ? (*segment)->Reserve(0, record.bytes) : segment.status();
  EXPECT_EQ(reserved.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(reserved.message()), HasSubstr("/dev/shm"));
}

TEST_F(SharedSegmentTest, IsListedByItsNodeAndRemoved) {
  WriteAndDie("what was learnt");
  EXPECT_THAT(Listed("book"), SizeIs(0));
  const std::vector<RegisteredSegment> listed = Listed("studio");
  ASSERT_THAT(listed, SizeIs(1));
  EXPECT_EQ(listed.front().record.job, "nano-1");
  EXPECT_EQ(listed.front().record.bytes, 100'000);
  EXPECT_TRUE(Exists(listed.front().name));
  EXPECT_TRUE(RemoveSegment(registry(), listed.front().name));
  EXPECT_FALSE(Exists(listed.front().name));
  EXPECT_THAT(Listed("studio"), SizeIs(0));
}

TEST_F(SharedSegmentTest, StaysUsableForItsOwnerWhenItWasRemoved) {
  const auto segment = Open(Record());
  ASSERT_TRUE(segment.ok());
  ASSERT_TRUE((*segment)->Reserve(0, 100'000).ok());
  (*segment)->Remove();
  EXPECT_FALSE(Exists((*segment)->name()));
  (*segment)->bytes()[99'999] = std::byte{1};
}

}  // namespace
}  // namespace espalier
