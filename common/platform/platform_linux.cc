// platform.h from /proc, /sys and the control group.
#include <link.h>
#include <pthread.h>
#include <sched.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/platform/linux_machine.h"
#include "common/platform/platform.h"

namespace espalier {
namespace {

// The peak of the process before RestartRecentPeak took it from the kernel's account.
std::atomic<int64_t> highest_before_restart{0};

// The value of a "Key:   123 kB" line, in bytes.
absl::StatusOr<int64_t> FindKilobytes(const std::vector<std::string>& lines,
                                      absl::string_view key) {
  for (const std::string& line : lines) {
    absl::string_view rest = line;
    if (!absl::ConsumePrefix(&rest, key) || !absl::ConsumePrefix(&rest, ":")) continue;
    const std::vector<std::string> words =
        absl::StrSplit(rest, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    int64_t kilobytes = 0;
    if (!words.empty() && absl::SimpleAtoi(words[0], &kilobytes)) return kilobytes * 1024;
  }
  return absl::NotFoundError(absl::StrCat("the kernel's account has no line '", key, "'"));
}

// "some avg10=1.23 ..." -> 1.23, in percent of time; negative: not there.
double ReadStall(absl::string_view kind) {
  for (const std::string& line : ReadLines("/proc/pressure/memory")) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    if (words.size() < 2 || words[0] != kind) continue;
    double percent = 0;
    if (absl::SimpleAtod(absl::StripPrefix(words[1], "avg10="), &percent)) return percent;
  }
  return -1;
}

// The kernel's stall information: the share of the last ten seconds in which some task, or every
// task at once, waited for memory.
Pressure MemoryPressure() {
  constexpr double kWarningPercent = 10;
  const double some = ReadStall("some");
  const double full = ReadStall("full");
  if (some < 0) return Pressure::kUnknown;
  if (full >= kWarningPercent) return Pressure::kCritical;
  return some >= kWarningPercent ? Pressure::kWarning : Pressure::kNormal;
}

Pressure ToPressure(LinuxHeat heat) {
  switch (heat) {
    case LinuxHeat::kUnknown:
      return Pressure::kUnknown;
    case LinuxHeat::kNormal:
      return Pressure::kNormal;
    case LinuxHeat::kHigh:
      return Pressure::kWarning;
    case LinuxHeat::kCritical:
      return Pressure::kCritical;
  }
  return Pressure::kUnknown;
}

std::string ProcessorModel() {
  for (const std::string& line : ReadLines("/proc/cpuinfo")) {
    if (!absl::StartsWith(line, "model name")) continue;
    const size_t colon = line.find(':');
    if (colon != std::string::npos) {
      return std::string(absl::StripAsciiWhitespace(line.substr(colon + 1)));
    }
  }
  utsname name{};
  return uname(&name) == 0 ? name.machine : "unknown";
}

absl::StatusOr<std::set<int>> AllowedProcessors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) {
    return absl::ErrnoToStatus(errno, "cannot read the processors this process may use");
  }
  std::set<int> allowed;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) allowed.insert(cpu);
  }
  return allowed;
}

}  // namespace

absl::StatusOr<MachineMemory> ReadMachineMemory() {
  const std::vector<std::string> lines = ReadLines("/proc/meminfo");
  const absl::StatusOr<int64_t> total = FindKilobytes(lines, "MemTotal");
  const absl::StatusOr<int64_t> available = FindKilobytes(lines, "MemAvailable");
  if (!total.ok()) return total.status();
  if (!available.ok()) return available.status();
  const int64_t swap =
      FindKilobytes(lines, "SwapTotal").value_or(0) - FindKilobytes(lines, "SwapFree").value_or(0);
  const ControlGroupLimits limits = ReadControlGroupLimits("/");
  return MachineMemory{
      .physical_bytes = *total,
      .limit_bytes = std::min(*total, limits.memory_limit_bytes.value_or(*total)),
      .available_bytes = std::min(*available, limits.memory_available_bytes.value_or(*available)),
      .swap_used_bytes = swap};
}

absl::Duration TimeWithSleep() {
  timespec now = {};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return absl::DurationFromTimespec(now);
}

absl::StatusOr<ProcessMemory> ReadProcessMemory() {
  const std::vector<std::string> lines = ReadLines("/proc/self/status");
  const absl::StatusOr<int64_t> now = FindKilobytes(lines, "VmRSS");
  const absl::StatusOr<int64_t> peak = FindKilobytes(lines, "VmHWM");
  if (!now.ok()) return now.status();
  if (!peak.ok()) return peak.status();
  // The kernel adds up the two at slightly different times.
  const int64_t recent = std::max(*now, *peak);
  return ProcessMemory{.now_bytes = *now,
                       .peak_bytes = std::max(recent, highest_before_restart.load()),
                       .recent_peak_bytes = recent,
                       .file_bytes = FindKilobytes(lines, "RssFile").value_or(0)};
}

// Writing 5 sets the kernel's peak to what is resident now, see proc(5).
void RestartRecentPeak() {
  const absl::StatusOr<ProcessMemory> memory = ReadProcessMemory();
  if (memory.ok()) highest_before_restart = memory->peak_bytes;
  std::ofstream("/proc/self/clear_refs") << 5;
}

void SampleRecentPeak() {}

absl::StatusOr<Processor> ReadProcessor() {
  const absl::StatusOr<std::set<int>> allowed = AllowedProcessors();
  if (!allowed.ok()) return allowed.status();
  Processor processor;
  processor.model = ProcessorModel();
  processor.logical = std::max<int>(1, static_cast<int>(allowed->size()));
  processor.performance_cores = CountPerformanceCores("/", *allowed);
  if (const auto quota = ReadControlGroupLimits("/").processors) {
    const int whole = std::max(1, static_cast<int>(std::ceil(std::min(*quota, 1e6))));
    processor.performance_cores = std::min(processor.performance_cores, whole);
  }
  return processor;
}

MachineCondition ReadMachineCondition() {
  const LinuxPower power = ReadPower("/");
  return {.memory = MemoryPressure(),
          .heat = ToPressure(ReadHeat("/")),
          .power = power.on_battery ? PowerSource::kBattery : PowerSource::kMains,
          .battery_percent = power.battery_percent};
}

absl::StatusOr<ProcessorTimes> ReadProcessorTimes(absl::string_view program) {
  const std::optional<LinuxTimes> times = ReadTimes("/", std::string(program));
  if (!times) return absl::NotFoundError("/proc/stat cannot be read");
  const auto duration = [](int64_t ticks) { return absl::Milliseconds(10) * ticks; };
  ProcessorTimes read{.busy = duration(times->busy), .processors = times->processors};
  for (const auto& [pid, ticks] : times->of_program) read.of_program[pid] = duration(ticks);
  return read;
}

std::unique_ptr<EnergyMeter> EnergyMeter::Start() { return MeterOf(FindEnergyCounters("")); }

absl::StatusOr<absl::Duration> ReadThreadTime(pthread_t thread) {
  clockid_t clock{};
  timespec used{};
  if (pthread_getcpuclockid(thread, &clock) != 0 || clock_gettime(clock, &used) != 0) {
    return absl::NotFoundError("the system knows no such thread");
  }
  return absl::DurationFromTimespec(used);
}

void MarkComputeThread() {}

absl::StatusOr<std::string> ProgramPath() {
  std::array<char, 4096> path;
  const ssize_t size = readlink("/proc/self/exe", path.data(), path.size());
  if (size < 0) return absl::ErrnoToStatus(errno, "cannot read /proc/self/exe");
  return std::string(path.data(), static_cast<size_t>(size));
}

absl::StatusOr<std::string> ProgramFolder() {
  const absl::StatusOr<std::string> program = ProgramPath();
  return program.ok() ? program->substr(0, program->rfind('/')) : program;
}

std::vector<std::string> LoadedLibraries() {
  std::vector<std::string> paths;
  dl_iterate_phdr(
      [](dl_phdr_info* library, size_t, void* to) {
        const std::string path = library->dlpi_name;  // empty: the program itself
        if (!path.empty()) static_cast<std::vector<std::string>*>(to)->push_back(path);
        return 0;
      },
      &paths);
  return paths;
}

}  // namespace espalier
