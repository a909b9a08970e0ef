#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/platform/linux_machine.h"

namespace espalier {
namespace {

namespace fs = std::filesystem;

// In thousandths of a degree, as the kernel has it. Firmware of desktops names limits that mean
// nothing, such as 20.8 degrees beside a constant 16.8.
constexpr int64_t kLeastLimit = 85'000;
constexpr int64_t kCriticalBelow = 3'000;
constexpr int64_t kHighBelow = 10'000;

std::string WordIn(const std::string& path) {
  const std::vector<std::string> lines = ReadLines(path);
  return lines.empty() ? "" : lines.front();
}

std::optional<int64_t> NumberIn(const std::string& path) {
  int64_t number = 0;
  if (!absl::SimpleAtoi(WordIn(path), &number)) return std::nullopt;
  return number;
}

std::vector<std::string> FoldersIn(const std::string& folder) {
  std::vector<std::string> paths;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    paths.push_back(it->path().string());
  }
  return paths;
}

LinuxHeat HeatOf(const std::string& zone) {
  const std::optional<int64_t> heat = NumberIn(zone + "/temp");
  if (!heat || *heat <= 0 || WordIn(zone + "/mode") == "disabled") return LinuxHeat::kUnknown;
  for (int i = 0;; ++i) {
    const std::string trip = absl::StrCat(zone, "/trip_point_", i, "_");
    const std::string type = WordIn(trip + "type");
    if (type.empty()) return LinuxHeat::kUnknown;
    const std::optional<int64_t> limit = NumberIn(trip + "temp");
    if (type != "critical" || !limit || *limit < kLeastLimit) continue;
    if (*heat >= *limit - kCriticalBelow) return LinuxHeat::kCritical;
    return *heat >= *limit - kHighBelow ? LinuxHeat::kHigh : LinuxHeat::kNormal;
  }
}

}  // namespace

LinuxPower ReadPower(const std::string& root) {
  bool on_mains = false;
  bool has_status = false;
  bool drains = false;
  int batteries = 0;
  int64_t percent = 0;
  int told = 0;
  for (const std::string& supply : FoldersIn(root + "sys/class/power_supply")) {
    const std::string type = WordIn(supply + "/type");
    const bool charges = type == "Mains" || absl::StartsWith(type, "USB");
    on_mains = on_mains || (charges && NumberIn(supply + "/online") == 1);
    const bool is_machines = type == "Battery" && WordIn(supply + "/scope") != "Device" &&
                             NumberIn(supply + "/present") != 0;
    if (!is_machines) continue;
    ++batteries;
    const std::string status = WordIn(supply + "/status");
    has_status = has_status || (!status.empty() && status != "Unknown");
    drains = drains || status == "Discharging";
    const std::optional<int64_t> left = NumberIn(supply + "/capacity");
    percent += left.value_or(0);
    told += left ? 1 : 0;
  }
  LinuxPower power{.on_battery = has_status ? drains : batteries > 0 && !on_mains};
  if (told > 0) power.battery_percent = static_cast<int>(percent / told);
  return power;
}

LinuxHeat ReadHeat(const std::string& root) {
  LinuxHeat worst = LinuxHeat::kUnknown;
  for (const std::string& zone : FoldersIn(root + "sys/class/thermal")) {
    worst = std::max(worst, HeatOf(zone));
  }
  return worst;
}

}  // namespace espalier
