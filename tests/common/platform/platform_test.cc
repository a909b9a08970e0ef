#include "common/platform/platform.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace espalier {
namespace {

constexpr int64_t kMiB = 1 << 20;

TEST(Platform, MemoryOfTheMachineIsPlausible) {
  const auto memory = ReadMachineMemory();
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_GT(memory->physical_bytes, 256 * kMiB);
  EXPECT_LE(memory->limit_bytes, memory->physical_bytes);
  EXPECT_GT(memory->available_bytes, 0);
  EXPECT_LE(memory->available_bytes, memory->limit_bytes);
  EXPECT_GE(memory->swap_used_bytes, 0);
}

TEST(Platform, MemoryThatIsTouchedIsCounted) {
  const auto before = ReadProcessMemory();
  ASSERT_TRUE(before.ok()) << before.status();
  std::vector<char> block(64 * kMiB);
  std::memset(block.data(), 1, block.size());
  const auto during = ReadProcessMemory();
  ASSERT_TRUE(during.ok()) << during.status();
  EXPECT_GT(during->now_bytes, before->now_bytes + 48 * kMiB) << block.back();
  EXPECT_GE(during->peak_bytes, during->now_bytes);
}

TEST(Platform, PeakMemoryOutlivesTheAllocation) {
  for (int i = 0; i < 2; ++i) {
    std::vector<char> block(static_cast<size_t>(96 * kMiB), static_cast<char>(i));
    ASSERT_TRUE(ReadProcessMemory().ok()) << block[static_cast<size_t>(i)];
  }
  const auto after = ReadProcessMemory();
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_GT(after->peak_bytes, 96 * kMiB);
}

TEST(Platform, TheRecentPeakStartsAgainAndTheHighestStays) {
  // From the system itself: an allocator may keep what is freed.
  constexpr auto kSize = static_cast<size_t>(128 * kMiB);
  void* block =
      mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON, /*fd=*/-1, /*offset=*/0);
  ASSERT_NE(block, MAP_FAILED);
  std::memset(block, 1, kSize);
  EXPECT_GT(ReadProcessMemory()->recent_peak_bytes, 128 * kMiB);
  ASSERT_EQ(munmap(block, kSize), 0);
  RestartRecentPeak();
  const auto after = ReadProcessMemory();
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_LT(after->recent_peak_bytes, after->peak_bytes - 64 * kMiB);
  EXPECT_GE(after->recent_peak_bytes, after->now_bytes);
  EXPECT_GE(after->file_bytes, 0);
  EXPECT_LT(after->file_bytes, after->now_bytes);
}

TEST(Platform, TheProcessorHasAModelAndCores) {
  const auto processor = ReadProcessor();
  ASSERT_TRUE(processor.ok()) << processor.status();
  EXPECT_FALSE(processor->model.empty());
  EXPECT_GE(processor->performance_cores, 1);
  EXPECT_LE(processor->performance_cores, processor->logical);
  EXPECT_FALSE(processor->translated);
}

TEST(Platform, TheProgramAndItsLibrariesHavePaths) {
  const auto program = ProgramPath();
  ASSERT_TRUE(program.ok()) << program.status();
  EXPECT_EQ(program->substr(0, program->rfind('/')), *ProgramFolder());
  const std::vector<std::string> libraries = LoadedLibraries();
  EXPECT_TRUE(std::any_of(libraries.begin(), libraries.end(), [](const std::string& path) {
    return path.find("libc++") != std::string::npos || path.find("libstdc++") != std::string::npos;
  }));
}

TEST(Platform, KeepAwakeWorksOrSaysWhatToDoInstead) {
  const auto awake = KeepAwake::Start("test");
  if (!awake.ok()) {
    EXPECT_EQ(awake.status().code(), absl::StatusCode::kUnimplemented);
    EXPECT_NE(awake.status().message().find("without logind"), absl::string_view::npos);
  }
}

TEST(Platform, TheConditionOfTheMachineCanBeReadAtAnyTime) {
  MarkComputeThread();
  const MachineCondition condition = ReadMachineCondition();
  EXPECT_NE(condition.power, PowerSource::kUnknown);
}

}  // namespace
}  // namespace espalier
