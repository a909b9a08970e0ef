// Energy as the kernel's powercap folder tells it.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "common/platform/linux_machine.h"
#include "common/platform/platform.h"

namespace espalier {
namespace {

namespace fs = std::filesystem;

class LinuxEnergy : public testing::Test {
 protected:
  LinuxEnergy() {
    std::string pattern = testing::TempDir() + "/energy-XXXXXX";
    root_ = mkdtemp(pattern.data());
  }
  ~LinuxEnergy() override { fs::remove_all(root_); }
  void Write(const std::string& zone, const std::string& file, const std::string& text) const {
    const fs::path folder = fs::path(root_) / "sys/class/powercap" / zone;
    fs::create_directories(folder);
    std::ofstream(folder / file) << text << "\n";
  }
  void AddZone(const std::string& zone, const std::string& name, int64_t energy) const {
    Write(zone, "name", name);
    Write(zone, "max_energy_range_uj", "10000000");
    Write(zone, "energy_uj", std::to_string(energy));
  }
  std::unique_ptr<EnergyMeter> Meter() const { return MeterOf(FindEnergyCounters(root_)); }

  std::string root_;
};

TEST_F(LinuxEnergy, OfAMachineThatDoesNotTellIsNone) {
  EXPECT_EQ(Meter(), nullptr);
  Write("intel-rapl:0", "name", "package-0");
  EXPECT_EQ(Meter(), nullptr) << "without a range";
  Write("intel-rapl:0", "max_energy_range_uj", "10000000");
  EXPECT_EQ(Meter(), nullptr) << "a counter that only root may read";
}

TEST_F(LinuxEnergy, IsThatOfAllPackagesSinceTheStartWithoutTheirParts) {
  AddZone("intel-rapl:0", "package-0", 5000000);
  AddZone("intel-rapl:1", "package-1", 1000000);
  AddZone("intel-rapl:0:0", "core", 3000000);
  const auto meter = Meter();
  ASSERT_NE(meter, nullptr);
  EXPECT_EQ(meter->Joules(), 0);
  AddZone("intel-rapl:0", "package-0", 6500000);
  AddZone("intel-rapl:1", "package-1", 1250000);
  AddZone("intel-rapl:0:0", "core", 9000000);
  EXPECT_DOUBLE_EQ(meter->Joules(), 1.75);
}

TEST_F(LinuxEnergy, OfThePlatformContainsThePackages) {
  AddZone("intel-rapl:0", "package-0", 0);
  AddZone("intel-rapl:1", "psys", 0);
  const auto meter = Meter();
  ASSERT_NE(meter, nullptr);
  AddZone("intel-rapl:0", "package-0", 1000000);
  AddZone("intel-rapl:1", "psys", 3000000);
  EXPECT_DOUBLE_EQ(meter->Joules(), 3);
}

TEST_F(LinuxEnergy, GoesOnWhereACounterBeginsAnew) {
  AddZone("intel-rapl:0", "package-0", 9500000);
  const auto meter = Meter();
  ASSERT_NE(meter, nullptr);
  AddZone("intel-rapl:0", "package-0", 250000);
  EXPECT_DOUBLE_EQ(meter->Joules(), 0.75);
  AddZone("intel-rapl:0", "package-0", 500000);
  EXPECT_DOUBLE_EQ(meter->Joules(), 1);
}

}  // namespace
}  // namespace espalier
