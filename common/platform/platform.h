// What the machine under the process is and how it fares: memory, processor, heat, power. Used by
// worker/ (limits, memory figures, threads), coordinator/agent (what a node is) and
// coordinator/ctl/verbs_handover.cc (the folder of its program). Each system has its own files:
// platform_linux.cc, sleep_linux.cc; platform_darwin.cc, sleep_darwin.cc. Thread-safe, but for
// SleepNotice, which one thread uses.
#pragma once

#include <pthread.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace espalier {

struct MachineMemory {
  int64_t physical_bytes = 0;
  // What this process could use at most: the physical memory, or the limit of its control group.
  int64_t limit_bytes = 0;
  // What could be allocated now without swapping, within the limit.
  int64_t available_bytes = 0;
  // Watch its growth; the figure itself says little.
  int64_t swap_used_bytes = 0;
};
absl::StatusOr<MachineMemory> ReadMachineMemory();

// Memory of this process as the system accounts it (Linux: resident; macOS: footprint, which counts
// compressed pages and the GPU's allocations too).
struct ProcessMemory {
  int64_t now_bytes = 0;
  int64_t peak_bytes = 0;
  // Highest since the last RestartRecentPeak; where the system keeps only the highest ever (macOS),
  // that one if it came since, else the highest that SampleRecentPeak saw.
  int64_t recent_peak_bytes = 0;
  // Of now_bytes, the pages of mapped files: the system drops them before it runs short. 0 on
  // macOS, whose footprint leaves them out.
  int64_t file_bytes = 0;
};
absl::StatusOr<ProcessMemory> ReadProcessMemory();
void RestartRecentPeak();
// To be called often while memory is in use; costs microseconds on macOS and nothing on Linux,
// which knows without.
void SampleRecentPeak();

// Since some start, the time in which the machine slept included; never goes back. For what others
// count on who were awake.
absl::Duration TimeWithSleep();

struct Processor {
  std::string model;
  // Logical processors that this process may use.
  int logical = 1;
  // Fast physical cores among them, within the control group's quota: as many compute threads pay.
  int performance_cores = 1;
  // The program is translated from another architecture (Rosetta), which makes it several times
  // slower.
  bool translated = false;
};
absl::StatusOr<Processor> ReadProcessor();

enum class Pressure {
  kUnknown,   // the system does not say
  kNormal,    // nothing to do
  kWarning,   // reclaiming or slowing down: use less
  kCritical,  // about to swap heavily, to kill, or to stop the processor
};
enum class PowerSource {
  kUnknown,  // the system does not say
  kMains,    // also: no battery at all
  kBattery,
};
struct MachineCondition {
  Pressure memory = Pressure::kUnknown;
  Pressure heat = Pressure::kUnknown;
  PowerSource power = PowerSource::kUnknown;
  // What its batteries have left; absent: it has none, or does not say.
  std::optional<int> battery_percent;
};
MachineCondition ReadMachineCondition();

// Since some start, all processors together.
struct ProcessorTimes {
  // What they computed, but for programs of low priority (`nice`).
  absl::Duration busy;
  int processors = 1;
  // Of the living processes of a program, by process.
  std::map<int64_t, absl::Duration> of_program;
};
// `program`: the beginning of its name, of which systems keep 15 letters.
absl::StatusOr<ProcessorTimes> ReadProcessorTimes(absl::string_view program);

// Keeps the machine from falling asleep of itself while it lives. A closed lid, an empty battery
// and the user still win.
class KeepAwake {
 public:
  virtual ~KeepAwake() = default;
  // `reason` is shown to the user by the system. UNIMPLEMENTED where a program cannot ask for it
  // (Linux without logind).
  static absl::StatusOr<std::unique_ptr<KeepAwake>> Start(absl::string_view reason);
};

// Word from the system that the machine is about to sleep, whatever keeps it awake: a closed lid,
// the user, an empty battery.
class SleepNotice {
 public:
  virtual ~SleepNotice() = default;
  // Null where the system says nothing to a program. Waits for nobody: Linux says nothing until
  // there is a logind, which may be later.
  static std::unique_ptr<SleepNotice> Start();
  // From then on until it is awake again. The system waits for Allow, half a minute at most (Linux:
  // 5 s, unless InhibitDelayMaxSec of logind.conf says otherwise). To be asked once a second.
  virtual bool about_to_sleep() = 0;
  virtual void Allow() = 0;
};

// What the machine's processors use, whoever has them compute.
class EnergyMeter {
 public:
  virtual ~EnergyMeter() = default;
  // Null where the machine does not tell this program: macOS tells root alone, and so do most
  // Linux systems, in virtual machines nobody.
  static std::unique_ptr<EnergyMeter> Start();
  // Since Start. To be called more often than the machine's counters go around, which takes
  // minutes.
  virtual double Joules() = 0;
};

// The running program, symbolic links resolved, and its folder.
absl::StatusOr<std::string> ProgramPath();
absl::StatusOr<std::string> ProgramFolder();

// Paths of the shared libraries that this process has loaded.
std::vector<std::string> LoadedLibraries();

// Processor time that a thread of this process has used; it must not have been joined.
absl::StatusOr<absl::Duration> ReadThreadTime(pthread_t thread);

// Tells the system that the calling thread computes what a person waits for, so that it runs on
// fast cores; without effect where all cores are equal.
void MarkComputeThread();

}  // namespace espalier
