// Processor times out of a made-up /proc.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "common/platform/linux_machine.h"

namespace espalier {
namespace {

namespace fs = std::filesystem;

class LinuxLoad : public ::testing::Test {
 protected:
  LinuxLoad() {
    std::string pattern = testing::TempDir() + "/load-XXXXXX";
    root_ = std::string(mkdtemp(pattern.data())) + "/";
  }
  ~LinuxLoad() override { fs::remove_all(root_); }
  void Write(const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  std::string root_;
};

TEST_F(LinuxLoad, CountsWhatIsComputedButForLowPriority) {
  Write("proc/stat",
        "cpu  1000 50 300 9000 20 7 3 5 0 0\ncpu0 500 25 150 4500 10 4 1 2 0 0\n"
        "cpu1 500 25 150 4500 10 3 2 3 0 0\nintr 1 2 3\n");
  const std::optional<LinuxTimes> times = ReadTimes(root_, "espalier-worker");
  ASSERT_TRUE(times.has_value());
  EXPECT_EQ(times->busy, 1310);
  EXPECT_EQ(times->processors, 2);
}

TEST_F(LinuxLoad, FindsTheProcessesOfAProgramWhateverTheirNameHolds) {
  Write("proc/stat", "cpu  1 0 0 0\ncpu0 1 0 0 0\n");
  Write("proc/41/stat", "41 (espalier-worker) S 1 41 41 0 -1 4 9 9 0 0 600 40 1 1 20 0\n");
  Write("proc/42/stat", "42 (espalier) worker (x) R 1 42 42 0 -1 4 9 9 0 0 700 1 1 1 20 0\n");
  Write("proc/43/stat", "43 (make) R 1 43 43 0 -1 4 9 9 0 0 800 1 1 1 20 0\n");
  Write("proc/44/stat", "torn");
  EXPECT_EQ(ReadTimes(root_, "espalier-worker")->of_program,
            (std::map<int64_t, int64_t>{{41, 640}}));
  EXPECT_EQ(ReadTimes(root_, "espalier) w")->of_program, (std::map<int64_t, int64_t>{{42, 701}}));
}

TEST_F(LinuxLoad, WithoutTheKernelsAccountNothingIsKnown) {
  EXPECT_FALSE(ReadTimes(root_, "espalier-worker").has_value());
}

}  // namespace
}  // namespace espalier
