#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "common/platform/linux_machine.h"

namespace espalier {
namespace {

namespace fs = std::filesystem;

// A made-up machine: a folder with the files of /proc and /sys that a case names.
class ControlGroupTest : public ::testing::Test {
 protected:
  ControlGroupTest() {
    std::string name = ::testing::TempDir() + "espalier-cgroup-XXXXXX";
    root_ = std::string(mkdtemp(name.data())) + "/";
  }
  ~ControlGroupTest() override { fs::remove_all(root_); }

  void Write(const std::map<std::string, std::string>& files) {
    for (const auto& [path, text] : files) {
      fs::create_directories(fs::path(root_ + path).parent_path());
      std::ofstream(root_ + path) << text;
    }
  }

  std::string root_;
};

TEST_F(ControlGroupTest, NoGroupsNoLimits) {
  const ControlGroupLimits limits = ReadControlGroupLimits(root_);
  EXPECT_FALSE(limits.memory_limit_bytes);
  EXPECT_FALSE(limits.memory_available_bytes);
  EXPECT_FALSE(limits.processors);
}

TEST_F(ControlGroupTest, Version2TakesTheTightestOfTheGroupAndThoseAbove) {
  Write({{"proc/self/cgroup", "0::/a/b\n"},
         {"proc/self/mountinfo", "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"},
         {"sys/fs/cgroup/a/memory.max", "1000000\n"},
         {"sys/fs/cgroup/a/memory.current", "600000\n"},
         {"sys/fs/cgroup/a/memory.stat", "anon 1\ninactive_file 50000\n"},
         {"sys/fs/cgroup/a/cpu.max", "150000 100000\n"},
         {"sys/fs/cgroup/a/b/memory.max", "max\n"},
         {"sys/fs/cgroup/a/b/cpu.max", "max 100000\n"}});
  const ControlGroupLimits limits = ReadControlGroupLimits(root_);
  EXPECT_EQ(limits.memory_limit_bytes, 1000000);
  EXPECT_EQ(limits.memory_available_bytes, 450000);
  EXPECT_EQ(limits.processors, 1.5);
}

TEST_F(ControlGroupTest, Version1SaysNoLimitWithAHugeNumber) {
  Write({{"proc/self/cgroup", "4:memory:/jobs/one\n1:cpu,cpuacct:/\n0::/\n"},
         {"proc/self/mountinfo",
          "35 31 0:32 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n"
          "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"},
         {"sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"},
         {"sys/fs/cgroup/memory/jobs/one/memory.limit_in_bytes", "4096\n"},
         {"sys/fs/cgroup/memory/jobs/one/memory.usage_in_bytes", "5000\n"},
         {"sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n"},
         {"sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"}});
  const ControlGroupLimits limits = ReadControlGroupLimits(root_);
  EXPECT_EQ(limits.memory_limit_bytes, 4096);
  EXPECT_EQ(limits.memory_available_bytes, 0);
  EXPECT_FALSE(limits.processors);
}

TEST_F(ControlGroupTest, InAContainerTheMountPointIsTheGroup) {
  Write({{"proc/self/cgroup", "4:memory:/docker/abc\n"},
         {"proc/self/mountinfo",
          "35 31 0:32 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"},
         {"sys/fs/cgroup/memory/memory.limit_in_bytes", "7000\n"}});
  EXPECT_EQ(ReadControlGroupLimits(root_).memory_limit_bytes, 7000);
}

TEST_F(ControlGroupTest, ProcessorListsAreRangesAndNumbers) {
  EXPECT_EQ(ParseProcessorList("0-2,7"), (std::set<int>{0, 1, 2, 7}));
  EXPECT_EQ(ParseProcessorList(""), std::set<int>{});
  EXPECT_EQ(ParseProcessorList("x,3,-1"), std::set<int>{3});
}

TEST_F(ControlGroupTest, TwoThreadsOfACoreCountOnce) {
  const std::string cpu = "sys/devices/system/cpu/cpu";
  Write({{cpu + "0/topology/core_id", "0"},
         {cpu + "1/topology/core_id", "0"},
         {cpu + "2/topology/core_id", "1"},
         {cpu + "3/topology/core_id", "1"}});
  EXPECT_EQ(CountPerformanceCores(root_, {0, 1, 2, 3}), 2);
  EXPECT_EQ(CountPerformanceCores(root_, {0, 1}), 1);
}

TEST_F(ControlGroupTest, SlowCoresAreLeftOut) {
  Write({{"sys/devices/cpu_core/cpus", "0-1\n"}});
  EXPECT_EQ(CountPerformanceCores(root_, {0, 1, 2, 3, 4}), 2);
  EXPECT_EQ(CountPerformanceCores(root_, {3, 4}), 2) << "only slow ones are allowed";
  fs::remove_all(root_ + "sys");
  Write({{"sys/devices/system/cpu/cpu0/cpu_capacity", "400"},
         {"sys/devices/system/cpu/cpu1/cpu_capacity", "1024"}});
  EXPECT_EQ(CountPerformanceCores(root_, {0, 1}), 1);
}

}  // namespace
}  // namespace espalier
