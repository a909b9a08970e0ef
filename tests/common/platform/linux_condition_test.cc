#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "common/platform/linux_machine.h"

namespace espalier {
namespace {

namespace fs = std::filesystem;

// A made-up machine: a folder with the files of /sys that a case names.
class LinuxCondition : public ::testing::Test {
 protected:
  LinuxCondition() {
    std::string name = ::testing::TempDir() + "espalier-sys-XXXXXX";
    root_ = std::string(mkdtemp(name.data())) + "/";
  }
  ~LinuxCondition() override { fs::remove_all(root_); }

  void Write(const std::map<std::string, std::string>& files) {
    for (const auto& [path, text] : files) {
      fs::create_directories(fs::path(root_ + path).parent_path());
      std::ofstream(root_ + path) << text << "\n";
    }
  }
  void Supply(const std::string& name, const std::map<std::string, std::string>& files) {
    for (const auto& [file, text] : files) {
      Write({{"sys/class/power_supply/" + name + "/" + file, text}});
    }
  }
  // At this temperature; one trip point of each type.
  void Zone(const std::string& name, int millidegrees, const std::map<std::string, int>& trips) {
    const std::string zone = "sys/class/thermal/" + name + "/";
    Write({{zone + "temp", std::to_string(millidegrees)}});
    int i = 0;
    for (const auto& [type, limit] : trips) {
      const std::string trip = zone + "trip_point_" + std::to_string(i++) + "_";
      Write({{trip + "type", type}, {trip + "temp", std::to_string(limit)}});
    }
  }

  std::string root_;
};

TEST_F(LinuxCondition, AMachineWithoutABatteryIsOnMains) {
  const LinuxPower power = ReadPower(root_);
  EXPECT_FALSE(power.on_battery);
  EXPECT_FALSE(power.battery_percent);
}

TEST_F(LinuxCondition, ALaptopIsOnItsBatteryWhileNothingChargesIt) {
  Supply("AC", {{"type", "Mains"}, {"online", "0"}});
  Supply("BAT0", {{"type", "Battery"}, {"capacity", "62"}});
  EXPECT_TRUE(ReadPower(root_).on_battery);
  EXPECT_EQ(ReadPower(root_).battery_percent, 62);
  Supply("AC", {{"online", "1"}});
  EXPECT_FALSE(ReadPower(root_).on_battery);
  EXPECT_EQ(ReadPower(root_).battery_percent, 62);
}

TEST_F(LinuxCondition, AChargerOnUsbIsMains) {
  Supply("ucsi-source", {{"type", "USB"}, {"online", "1"}});
  Supply("BAT0", {{"type", "Battery"}, {"capacity", "62"}});
  EXPECT_FALSE(ReadPower(root_).on_battery);
}

TEST_F(LinuxCondition, TheBatteryOfAMouseIsNotTheMachines) {
  Supply("hidpp_battery_0", {{"type", "Battery"}, {"scope", "Device"}, {"capacity", "5"}});
  EXPECT_FALSE(ReadPower(root_).on_battery);
  EXPECT_FALSE(ReadPower(root_).battery_percent);
}

TEST_F(LinuxCondition, TwoBatteriesHaveTheirMeanLeft) {
  Supply("BAT0", {{"type", "Battery"}, {"capacity", "10"}});
  Supply("BAT1", {{"type", "Battery"}, {"capacity", "80"}});
  EXPECT_EQ(ReadPower(root_).battery_percent, 45);
}

TEST_F(LinuxCondition, ABatteryThatSaysWhatItDoesIsBelieved) {
  Supply("BAT0", {{"type", "Battery"}, {"status", "Charging"}, {"capacity", "15"}});
  EXPECT_FALSE(ReadPower(root_).on_battery) << "of a board that names no charger";
  Supply("usb", {{"type", "USB"}, {"online", "1"}});
  Supply("BAT0", {{"status", "Discharging"}});
  EXPECT_TRUE(ReadPower(root_).on_battery) << "of a charger that gives too little";
  Supply("BAT0", {{"status", "Unknown"}});
  EXPECT_FALSE(ReadPower(root_).on_battery);
}

TEST_F(LinuxCondition, ABatteryThatWasTakenOutIsNone) {
  Supply("BAT0", {{"type", "Battery"}, {"present", "0"}, {"capacity", "0"}});
  EXPECT_FALSE(ReadPower(root_).on_battery);
  EXPECT_FALSE(ReadPower(root_).battery_percent);
}

TEST_F(LinuxCondition, HeatThatNobodyTellsIsUnknown) {
  EXPECT_EQ(ReadHeat(root_), LinuxHeat::kUnknown);
  Zone("thermal_zone0", 90000, {});
  Zone("thermal_zone1", 90000, {{"active", 40000}, {"passive", 80000}});
  Zone("thermal_zone2", 90000, {{"critical", -274000}});
  EXPECT_EQ(ReadHeat(root_), LinuxHeat::kUnknown);
}

TEST_F(LinuxCondition, LimitsThatMeanNothingAreNotBelieved) {
  Zone("acpitz", 16800, {{"critical", 20800}});
  EXPECT_EQ(ReadHeat(root_), LinuxHeat::kUnknown) << "as desktops have it";
  Zone("broken", -273000, {{"critical", 100000}});
  Zone("off", 99000, {{"critical", 100000}});
  Write({{"sys/class/thermal/off/mode", "disabled"}});
  EXPECT_EQ(ReadHeat(root_), LinuxHeat::kUnknown);
}

TEST_F(LinuxCondition, HeatIsCriticalJustBelowWhereTheMachineIsSwitchedOff) {
  const std::map<std::string, int> trips = {{"critical", 105000}, {"passive", 80000}};
  Zone("thermal_zone0", 94999, trips);
  EXPECT_EQ(ReadHeat(root_), LinuxHeat::kNormal);
  Zone("thermal_zone0", 95000, trips);
  EXPECT_EQ(ReadHeat(root_), LinuxHeat::kHigh);
  Zone("thermal_zone0", 101999, trips);
  EXPECT_EQ(ReadHeat(root_), LinuxHeat::kHigh);
  Zone("thermal_zone0", 102000, trips);
  EXPECT_EQ(ReadHeat(root_), LinuxHeat::kCritical);
}

TEST_F(LinuxCondition, TheHottestZoneCounts) {
  Zone("thermal_zone0", 30000, {{"critical", 105000}});
  Zone("thermal_zone1", 99000, {{"critical", 100000}});
  EXPECT_EQ(ReadHeat(root_), LinuxHeat::kCritical);
}

}  // namespace
}  // namespace espalier
