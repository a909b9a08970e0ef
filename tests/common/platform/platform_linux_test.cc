// What platform.h promises of Linux alone.
#include <gtest/gtest.h>

#include "common/platform/platform.h"

namespace espalier {
namespace {

TEST(PlatformOnLinux, PagesOfMappedFilesAreToldApart) {
  const auto memory = ReadProcessMemory();
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_GT(memory->file_bytes, 0) << "the program itself is a mapped file";
}

}  // namespace
}  // namespace espalier
