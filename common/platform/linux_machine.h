// What the files of a Linux machine say: the limits of this process by its control groups (version
// 1 or 2, or both mounted), which processors are fast physical cores, power and heat. Used by
// platform_linux.cc; free of system calls, so that its tests run everywhere. Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace espalier {

class EnergyMeter;  // platform.h

struct ControlGroupLimits {
  // Tightest memory limit of the group and those above it; absent: none.
  std::optional<int64_t> memory_limit_bytes;
  // What is left until that limit, files that can be dropped counted as free.
  std::optional<int64_t> memory_available_bytes;
  // Processors' worth of time per second, tightest of the group and those above it.
  std::optional<double> processors;
};

// Reads below `root`, "/" but for tests: root/proc/self/{cgroup,mountinfo} and the groups' files.
// What is not there sets no limit.
ControlGroupLimits ReadControlGroupLimits(const std::string& root);

// "0-3,8" -> {0, 1, 2, 3, 8}; what cannot be read is left out.
std::set<int> ParseProcessorList(const std::string& text);

// Of the logical processors `allowed`, how many different physical cores of the fastest kind. Reads
// below `root`, "/" but for tests. At least 1.
int CountPerformanceCores(const std::string& root, const std::set<int>& allowed);

// In ticks of a hundredth of a second: root/proc/stat, and root/proc/PID/stat of the processes
// whose name begins with `program`. Absent: it cannot be read.
struct LinuxTimes {
  int64_t busy = 0;
  int processors = 0;
  std::map<int64_t, int64_t> of_program;
};
std::optional<LinuxTimes> ReadTimes(const std::string& root, const std::string& program);

// root/sys/class/power_supply. The battery of a mouse is none of the machine's. It runs on one that
// says that it discharges; where none says, when no charger is there.
struct LinuxPower {
  bool on_battery = false;
  // Of several batteries the mean; absent: there is none, or it does not say.
  std::optional<int> battery_percent;
};
LinuxPower ReadPower(const std::string& root);

// root/sys/class/thermal: the worst of the zones that say at what temperature the machine is
// switched off: kCritical from 3 degrees below on, kHigh from 10. kUnknown: none says.
enum class LinuxHeat { kUnknown, kNormal, kHigh, kCritical };
LinuxHeat ReadHeat(const std::string& root);

// root/sys/class/powercap: one for each processor package, and for the whole platform where that is
// told, which contains the packages. In microjoules; `range`: where it begins anew.
struct LinuxEnergyCounter {
  std::string path;
  int64_t range = 0;
};
std::vector<LinuxEnergyCounter> FindEnergyCounters(const std::string& root);
// A meter of these; null without any that can be read.
std::unique_ptr<EnergyMeter> MeterOf(const std::vector<LinuxEnergyCounter>& counters);

// The lines of a small file of the system (/proc, /sys) without their ends; none when it cannot be
// read.
std::vector<std::string> ReadLines(const std::string& path);

}  // namespace espalier
