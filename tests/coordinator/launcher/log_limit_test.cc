#include "coordinator/launcher/log_limit.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "tests/coordinator/scratch_folder.h"

namespace espalier {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(LogLimit, ALongLogKeepsItsLastLinesAndItsWriterGoesOn) {
  ScratchFolder folder;
  const std::string path = folder.path("gen-0001.log");
  const int writer = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  const auto say = [&](const std::string& line) {
    ASSERT_EQ(write(writer, line.data(), line.size()), static_cast<ssize_t>(line.size()));
  };
  for (int i = 1000; i < 2000; ++i) say("line " + std::to_string(i) + "\n");  // 10 bytes each
  ASSERT_TRUE(ShortenLog(path, {.bytes = 10000}).ok());
  EXPECT_EQ(folder.Read("gen-0001.log").size(), 10000u) << "it was not too long";
  say("line 2000\n");
  ASSERT_TRUE(ShortenLog(path, {.bytes = 10000}).ok());
  say("line 2001\n");
  close(writer);
  const std::string text = folder.Read("gen-0001.log");
  EXPECT_THAT(text,
              StartsWith("(espalierd removed the first 7520 bytes of this log)\nline 1752\n"));
  EXPECT_THAT(text, EndsWith("line 1999\nline 2000\nline 2001\n"));
}

TEST(LogLimit, ALogThatIsNotThereIsShortEnough) {
  ScratchFolder folder;
  EXPECT_TRUE(ShortenLog(folder.path("gen-0001.log"), {}).ok());
  EXPECT_TRUE(RemoveOldLogs(folder.path("absent"), {}).ok());
}

TEST(LogLimit, TheNewestLogsOfAJobAreKeptByNumberAndBytes) {
  ScratchFolder folder;
  for (const char* name : {"gen-0998.log", "gen-0999.log", "gen-9999.log", "gen-10000.log"}) {
    folder.Write(name, std::string(100, 'x'));
  }
  folder.Write("notes.txt", std::string(1000, 'x'));
  ASSERT_TRUE(RemoveOldLogs(folder.root(), {.files = 3}).ok());
  EXPECT_FALSE(std::filesystem::exists(folder.path("gen-0998.log")));
  EXPECT_TRUE(std::filesystem::exists(folder.path("gen-0999.log")));
  ASSERT_TRUE(RemoveOldLogs(folder.root(), {.job_bytes = 250, .files = 3}).ok());
  EXPECT_FALSE(std::filesystem::exists(folder.path("gen-0999.log")));
  EXPECT_TRUE(std::filesystem::exists(folder.path("gen-9999.log")));
  EXPECT_TRUE(std::filesystem::exists(folder.path("gen-10000.log")));
  EXPECT_TRUE(std::filesystem::exists(folder.path("notes.txt")));
}

}  // namespace
}  // namespace espalier
