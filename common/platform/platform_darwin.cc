// platform.h from Mach, sysctl, notify(3) and IOKit.
#include <CoreFoundation/CoreFoundation.h>
#include <IOKit/ps/IOPSKeys.h>
#include <IOKit/ps/IOPowerSources.h>
#include <IOKit/pwr_mgt/IOPMLib.h>
#include <libproc.h>
#include <mach-o/dyld.h>
#include <mach/mach.h>
#include <mach/mach_time.h>
#include <notify.h>
#include <pthread/qos.h>
#include <sys/param.h>
#include <sys/sysctl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/platform/platform.h"
#include "common/platform/recent_peak.h"

namespace espalier {
namespace {

// The kernel's own cannot be reset.
RecentPeak recent_peak;

// In which the kernel counts what a process has computed.
absl::Duration FromMachTime(uint64_t time) {
  mach_timebase_info_data_t base{};
  mach_timebase_info(&base);
  return absl::Nanoseconds(static_cast<double>(time) * base.numer / std::max(1u, base.denom));
}

template <typename T>
absl::StatusOr<T> ReadSysctl(const char* name) {
  T value{};
  size_t size = sizeof(value);
  if (sysctlbyname(name, &value, &size, nullptr, 0) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot read sysctl ", name));
  }
  return value;
}

absl::StatusOr<std::string> ReadSysctlText(const char* name) {
  char text[256] = {};
  size_t size = sizeof(text) - 1;
  if (sysctlbyname(name, text, &size, nullptr, 0) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot read sysctl ", name));
  }
  return std::string(text);
}

// Free pages and those that can be had by dropping something: files, purgeable memory. free_count
// and external_page_count both include the speculative pages, so they are taken off once.
absl::StatusOr<int64_t> AvailableBytes() {
  vm_statistics64_data_t statistics{};
  mach_msg_type_number_t count = HOST_VM_INFO64_COUNT;
  const mach_port_t host = mach_host_self();
  const kern_return_t got =
      host_statistics64(host, HOST_VM_INFO64, reinterpret_cast<host_info64_t>(&statistics), &count);
  vm_size_t page = 0;
  const kern_return_t sized = host_page_size(host, &page);
  mach_port_deallocate(mach_task_self(), host);
  if (got != KERN_SUCCESS || sized != KERN_SUCCESS) {
    return absl::InternalError(
        absl::StrCat("host_statistics64 failed with ", got, ", host_page_size with ", sized));
  }
  const int64_t pages = int64_t{statistics.free_count} - int64_t{statistics.speculative_count} +
                        int64_t{statistics.external_page_count} +
                        int64_t{statistics.purgeable_count};
  return std::max<int64_t>(0, pages) * static_cast<int64_t>(page);
}

// The kernel's levels are 1, 2 and 4; see xnu's kern_memorystatus_notify.c.
Pressure MemoryPressure() {
  const absl::StatusOr<int> level = ReadSysctl<int>("kern.memorystatus_vm_pressure_level");
  if (!level.ok()) return Pressure::kUnknown;
  if (*level >= 4) return Pressure::kCritical;
  return *level >= 2 ? Pressure::kWarning : Pressure::kNormal;
}

// 0 nominal, 1 moderate, 2 heavy (the processor is slowed down), 3 trapping, 4 sleeping.
Pressure Heat() {
  static const int token = [] {
    int made = 0;
    const uint32_t result = notify_register_check("com.apple.system.thermalpressurelevel", &made);
    return result == NOTIFY_STATUS_OK ? made : -1;
  }();
  uint64_t level = 0;
  if (token < 0 || notify_get_state(token, &level) != NOTIFY_STATUS_OK) return Pressure::kUnknown;
  if (level >= 3) return Pressure::kCritical;
  return level == 2 ? Pressure::kWarning : Pressure::kNormal;
}

PowerSource ReadPowerSource() {
  const CFTimeInterval left = IOPSGetTimeRemainingEstimate();
  return left == kIOPSTimeRemainingUnlimited ? PowerSource::kMains : PowerSource::kBattery;
}

std::optional<int> NumberOf(CFDictionaryRef dictionary, CFStringRef key) {
  const void* const value = CFDictionaryGetValue(dictionary, key);
  int number = 0;
  const bool found = value != nullptr && CFGetTypeID(value) == CFNumberGetTypeID() &&
                     CFNumberGetValue(static_cast<CFNumberRef>(value), kCFNumberIntType, &number);
  return found ? std::optional<int>(number) : std::nullopt;
}

// Of one power source, if it is of that type.
std::optional<int> PercentOf(CFDictionaryRef source, CFStringRef type) {
  const void* const own = CFDictionaryGetValue(source, CFSTR(kIOPSTypeKey));
  if (own == nullptr || !CFEqual(own, type)) return std::nullopt;
  const std::optional<int> now = NumberOf(source, CFSTR(kIOPSCurrentCapacityKey));
  const std::optional<int> most = NumberOf(source, CFSTR(kIOPSMaxCapacityKey));
  if (!now || !most || *most <= 0) return std::nullopt;
  return 100 * *now / *most;
}

// The built-in battery's; of a machine without one, that of its uninterruptible supply.
std::optional<int> ReadBatteryPercent() {
  const CFTypeRef info = IOPSCopyPowerSourcesInfo();
  if (info == nullptr) return std::nullopt;
  const CFArrayRef sources = IOPSCopyPowerSourcesList(info);
  const CFIndex count = sources == nullptr ? 0 : CFArrayGetCount(sources);
  std::optional<int> percent;
  for (const CFStringRef type : {CFSTR(kIOPSInternalBatteryType), CFSTR(kIOPSUPSType)}) {
    for (CFIndex i = 0; i < count && !percent; ++i) {
      // Belongs to `info`.
      const CFDictionaryRef source =
          IOPSGetPowerSourceDescription(info, CFArrayGetValueAtIndex(sources, i));
      if (source != nullptr) percent = PercentOf(source, type);
    }
  }
  if (sources != nullptr) CFRelease(sources);
  CFRelease(info);
  return percent;
}

class IdleSleepAssertion : public KeepAwake {
 public:
  explicit IdleSleepAssertion(IOPMAssertionID id) : id_(id) {}
  ~IdleSleepAssertion() override { IOPMAssertionRelease(id_); }

 private:
  const IOPMAssertionID id_;
};

}  // namespace

absl::StatusOr<MachineMemory> ReadMachineMemory() {
  const absl::StatusOr<uint64_t> physical = ReadSysctl<uint64_t>("hw.memsize");
  if (!physical.ok()) return physical.status();
  const absl::StatusOr<int64_t> available = AvailableBytes();
  if (!available.ok()) return available.status();
  const absl::StatusOr<xsw_usage> swap = ReadSysctl<xsw_usage>("vm.swapusage");
  if (!swap.ok()) return swap.status();
  const auto total = static_cast<int64_t>(*physical);
  return MachineMemory{.physical_bytes = total,
                       .limit_bytes = total,
                       .available_bytes = *available,
                       .swap_used_bytes = static_cast<int64_t>(swap->xsu_used)};
}

absl::Duration TimeWithSleep() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC_RAW, &now);
  return absl::DurationFromTimespec(now);
}

absl::StatusOr<ProcessMemory> ReadProcessMemory() {
  task_vm_info_data_t info{};
  mach_msg_type_number_t count = TASK_VM_INFO_COUNT;
  const kern_return_t got =
      task_info(mach_task_self(), TASK_VM_INFO, reinterpret_cast<task_info_t>(&info), &count);
  if (got != KERN_SUCCESS) return absl::InternalError(absl::StrCat("task_info failed with ", got));
  const auto now = static_cast<int64_t>(info.phys_footprint);
  const auto peak = static_cast<int64_t>(info.ledger_phys_footprint_peak);
  return ProcessMemory{.now_bytes = now,
                       .peak_bytes = std::max(now, peak),
                       .recent_peak_bytes = recent_peak.Look(now, std::max(now, peak))};
}

void RestartRecentPeak() {
  const absl::StatusOr<ProcessMemory> memory = ReadProcessMemory();
  if (memory.ok()) recent_peak.Restart(memory->now_bytes, memory->peak_bytes);
}

void SampleRecentPeak() { ReadProcessMemory().IgnoreError(); }

absl::StatusOr<Processor> ReadProcessor() {
  const absl::StatusOr<int> logical = ReadSysctl<int>("hw.logicalcpu");
  if (!logical.ok()) return logical.status();
  Processor processor;
  processor.model = ReadSysctlText("machdep.cpu.brand_string").value_or("unknown");
  processor.logical = *logical;
  // Absent on Intel Macs, whose cores are all alike.
  const absl::StatusOr<int> fast = ReadSysctl<int>("hw.perflevel0.physicalcpu");
  processor.performance_cores =
      fast.ok() ? *fast : ReadSysctl<int>("hw.physicalcpu").value_or(*logical);
  processor.translated = ReadSysctl<int>("sysctl.proc_translated").value_or(0) == 1;
  return processor;
}

MachineCondition ReadMachineCondition() {
  return {.memory = MemoryPressure(),
          .heat = Heat(),
          .power = ReadPowerSource(),
          .battery_percent = ReadBatteryPercent()};
}

absl::StatusOr<ProcessorTimes> ReadProcessorTimes(absl::string_view program) {
  host_cpu_load_info_data_t load{};
  mach_msg_type_number_t count = HOST_CPU_LOAD_INFO_COUNT;
  const mach_port_t host = mach_host_self();
  const kern_return_t got =
      host_statistics(host, HOST_CPU_LOAD_INFO, reinterpret_cast<host_info_t>(&load), &count);
  mach_port_deallocate(mach_task_self(), host);
  if (got != KERN_SUCCESS) return absl::NotFoundError("the kernel does not say how busy it is");
  ProcessorTimes times;
  const uint64_t ticks =
      uint64_t{load.cpu_ticks[CPU_STATE_USER]} + load.cpu_ticks[CPU_STATE_SYSTEM];
  times.busy = absl::Seconds(static_cast<double>(ticks) / sysconf(_SC_CLK_TCK));
  times.processors = ReadSysctl<int>("hw.logicalcpu").value_or(1);
  std::vector<pid_t> pids(static_cast<size_t>(std::max(0, proc_listallpids(nullptr, 0))) + 64);
  const int found = proc_listallpids(pids.data(), static_cast<int>(pids.size() * sizeof(pids[0])));
  pids.resize(static_cast<size_t>(std::clamp<int>(found, 0, static_cast<int>(pids.size()))));
  for (const pid_t pid : pids) {
    char name[2 * MAXCOMLEN + 1] = {};
    proc_taskinfo used{};
    if (proc_name(pid, name, sizeof(name)) <= 0 || !absl::StartsWith(name, program)) continue;
    if (proc_pidinfo(pid, PROC_PIDTASKINFO, 0, &used, sizeof(used)) < int{sizeof(used)}) continue;
    times.of_program[pid] = FromMachTime(used.pti_total_user + used.pti_total_system);
  }
  return times;
}

absl::StatusOr<std::unique_ptr<KeepAwake>> KeepAwake::Start(absl::string_view reason) {
  const std::string text(reason);
  const CFStringRef shown =
      CFStringCreateWithCString(kCFAllocatorDefault, text.c_str(), kCFStringEncodingUTF8);
  if (shown == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("the reason '", text, "' is not UTF-8"));
  }
  IOPMAssertionID id = 0;
  const IOReturn made = IOPMAssertionCreateWithName(kIOPMAssertionTypePreventUserIdleSystemSleep,
                                                    kIOPMAssertionLevelOn, shown, &id);
  CFRelease(shown);
  if (made != kIOReturnSuccess) {
    return absl::InternalError(absl::StrCat("IOPMAssertionCreateWithName failed with ", made));
  }
  return std::make_unique<IdleSleepAssertion>(id);
}

absl::StatusOr<absl::Duration> ReadThreadTime(pthread_t thread) {
  thread_basic_info_data_t info{};
  mach_msg_type_number_t count = THREAD_BASIC_INFO_COUNT;
  const kern_return_t got = thread_info(pthread_mach_thread_np(thread), THREAD_BASIC_INFO,
                                        reinterpret_cast<thread_info_t>(&info), &count);
  if (got != KERN_SUCCESS) return absl::NotFoundError("the system knows no such thread");
  const auto duration = [](const time_value_t& time) {
    return absl::Seconds(time.seconds) + absl::Microseconds(time.microseconds);
  };
  return duration(info.user_time) + duration(info.system_time);
}

void MarkComputeThread() { pthread_set_qos_class_self_np(QOS_CLASS_USER_INITIATED, 0); }

absl::StatusOr<std::string> ProgramPath() {
  std::array<char, MAXPATHLEN> path;
  uint32_t size = path.size();
  if (_NSGetExecutablePath(path.data(), &size) != 0) {
    return absl::InternalError("the path of the program is too long");
  }
  std::array<char, MAXPATHLEN> resolved;
  if (realpath(path.data(), resolved.data()) == nullptr) {
    return absl::ErrnoToStatus(errno, "cannot resolve the path of the program");
  }
  return std::string(resolved.data());
}

absl::StatusOr<std::string> ProgramFolder() {
  const absl::StatusOr<std::string> program = ProgramPath();
  return program.ok() ? program->substr(0, program->rfind('/')) : program;
}

// Image 0 is the program itself; one that is unloaded meanwhile has no name.
std::vector<std::string> LoadedLibraries() {
  std::vector<std::string> paths;
  for (uint32_t i = 1; i < _dyld_image_count(); ++i) {
    if (const char* const path = _dyld_get_image_name(i)) paths.emplace_back(path);
  }
  return paths;
}

// powermetrics and IOReport tell root alone, and are no interface.
std::unique_ptr<EnergyMeter> EnergyMeter::Start() { return nullptr; }

}  // namespace espalier
