// Energy as the kernel's powercap folder tells it (RAPL of Intel and AMD): counters in microjoules
// that begin anew at their range.
#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "common/platform/linux_machine.h"
#include "common/platform/platform.h"

namespace espalier {
namespace {

namespace fs = std::filesystem;

std::optional<int64_t> NumberIn(const std::string& path) {
  const std::vector<std::string> lines = ReadLines(path);
  int64_t number = 0;
  if (lines.empty() || !absl::SimpleAtoi(lines.front(), &number)) return std::nullopt;
  return number;
}

class LinuxEnergyMeter final : public EnergyMeter {
 public:
  explicit LinuxEnergyMeter(const std::vector<LinuxEnergyCounter>& counters) {
    for (const LinuxEnergyCounter& counter : counters) {
      if (const auto now = NumberIn(counter.path)) zones_.push_back({counter, *now});
    }
  }

  bool empty() const { return zones_.empty(); }
  double Joules() override {
    for (Zone& zone : zones_) {
      const std::optional<int64_t> now = NumberIn(zone.counter.path);
      if (!now) continue;
      const int64_t since = *now - zone.last;
      used_ += since >= 0 ? since : since + zone.counter.range;
      zone.last = *now;
    }
    return static_cast<double>(used_) / 1e6;
  }

 private:
  struct Zone {
    LinuxEnergyCounter counter;
    int64_t last = 0;
  };
  std::vector<Zone> zones_;
  int64_t used_ = 0;
};

}  // namespace

std::vector<LinuxEnergyCounter> FindEnergyCounters(const std::string& root) {
  std::vector<LinuxEnergyCounter> packages, platform;
  std::error_code error;
  for (fs::directory_iterator it(root + "/sys/class/powercap", error), end; !error && it != end;
       it.increment(error)) {
    const std::vector<std::string> name = ReadLines(it->path() / "name");
    const std::optional<int64_t> range = NumberIn(it->path() / "max_energy_range_uj");
    if (name.empty() || !range) continue;
    const LinuxEnergyCounter counter{it->path() / "energy_uj", *range};
    if (absl::StartsWith(name.front(), "package-")) packages.push_back(counter);
    if (name.front() == "psys") platform.push_back(counter);
  }
  return platform.empty() ? packages : platform;
}

std::unique_ptr<EnergyMeter> MeterOf(const std::vector<LinuxEnergyCounter>& counters) {
  auto meter = std::make_unique<LinuxEnergyMeter>(counters);
  if (meter->empty()) return nullptr;
  return meter;
}

}  // namespace espalier
