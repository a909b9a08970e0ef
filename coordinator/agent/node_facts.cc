#include "coordinator/agent/node_facts.h"

#include <google/protobuf/util/json_util.h>
#include <sys/utsname.h>
#include <time.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/file_system.h"
#include "common/base/sha256.h"
#include "common/base/utf8.h"
#include "common/observe/log.h"
#include "common/platform/platform.h"
#include "coordinator/agent/warm_memory.h"

namespace espalier {
namespace {

namespace fs = std::filesystem;

// Of one folder.
constexpr int kStatesMax = 1000;
constexpr int64_t kFoldersBytesMax = 16384;
constexpr int64_t kConditionBytesMax = 4096;
// The system counts in hundredths of a second.
constexpr absl::Duration kShortestLoad = absl::Milliseconds(500);
// What it computes is no other's load, whoever started it.
constexpr char kWorkerProgram[] = "espalier-worker";

v1::NodePressure ToProto(Pressure pressure) {
  switch (pressure) {
    case Pressure::kUnknown:
      return v1::NODE_PRESSURE_UNKNOWN;
    case Pressure::kNormal:
      return v1::NODE_PRESSURE_NORMAL;
    case Pressure::kWarning:
      return v1::NODE_PRESSURE_WARNING;
    case Pressure::kCritical:
      return v1::NODE_PRESSURE_CRITICAL;
  }
  return v1::NODE_PRESSURE_UNKNOWN;
}

v1::NodePower ToProto(PowerSource power) {
  switch (power) {
    case PowerSource::kUnknown:
      return v1::NODE_POWER_UNKNOWN;
    case PowerSource::kMains:
      return v1::NODE_POWER_MAINS;
    case PowerSource::kBattery:
      return v1::NODE_POWER_BATTERY;
  }
  return v1::NODE_POWER_UNKNOWN;
}

// The time zone of the system as it is now: absl keeps the one of the program's start.
int32_t UtcOffsetSeconds(absl::Time now) {
  const time_t seconds = absl::ToTimeT(now);
  tm local{};
  tzset();
  if (localtime_r(&seconds, &local) == nullptr) return 0;
  return static_cast<int32_t>(local.tm_gmtoff);
}

std::string SystemName() {
  utsname name;
  if (uname(&name) != 0) return "";
  return absl::StrCat(name.sysname, " ", name.release, " ", name.machine);
}

void FillResources(const std::string& folder, v1::NodeResources& resources) {
  resources.set_system(SystemName());
  if (const absl::StatusOr<Processor> processor = ReadProcessor(); processor.ok()) {
    resources.set_processor(AsUtf8(processor->model));
    resources.set_performance_cores(processor->performance_cores);
  }
  if (const absl::StatusOr<MachineMemory> memory = ReadMachineMemory(); memory.ok()) {
    resources.set_memory_bytes(memory->limit_bytes);
    resources.set_memory_available_bytes(memory->available_bytes);
    resources.set_swap_used_bytes(memory->swap_used_bytes);
  }
  std::error_code error;
  const fs::space_info space = fs::space(folder, error);
  if (!error) resources.set_disk_free_bytes(static_cast<int64_t>(space.available));
}

// What is missing or no folder holds nothing; other errors (of a network mount, say) tell nothing
// of what lies there.
absl::StatusOr<std::vector<std::string>> NamesIn(const std::string& folder) {
  absl::StatusOr<std::vector<std::string>> names = PosixFileSystem().List(folder);
  const bool holds_nothing =
      absl::IsNotFound(names.status()) || absl::IsFailedPrecondition(names.status());
  if (holds_nothing) return std::vector<std::string>{};
  return names;
}

// "step-00000500", published: its manifest is there.
std::optional<int64_t> StepOf(const std::string& name, const std::string& checkpoint) {
  absl::string_view number = name;
  int64_t step = 0;
  std::error_code ignored;
  if (!absl::ConsumePrefix(&number, "step-") || !absl::SimpleAtoi(number, &step) ||
      !fs::exists(JoinPath(checkpoint, "manifest.json"), ignored)) {
    return std::nullopt;
  }
  return step;
}

void AddHeldOf(const std::string& folder, const std::string& job, const v1::NodeReport& before,
               v1::NodeReport& report) {
  const std::string id = AsUtf8(job);
  const std::string checkpoints = JoinPath(JoinPath(folder, job), "checkpoints");
  const absl::StatusOr<std::vector<std::string>> names = NamesIn(checkpoints);
  if (!names.ok()) {
    for (const v1::HeldState& held : before.held()) {
      if (held.job_id() == id && report.held_size() < kStatesMax) *report.add_held() = held;
    }
    return;
  }
  for (const std::string& name : *names) {
    const std::string path = JoinPath(checkpoints, name);
    const std::optional<int64_t> step = StepOf(name, path);
    if (!step || report.held_size() >= kStatesMax) continue;
    v1::HeldState& held = *report.add_held();
    held.set_job_id(id);
    held.set_step(*step);
    held.set_path(AsUtf8(path));
  }
}

void AddHeld(const std::string& folder, const v1::NodeReport& before, v1::NodeReport& report) {
  const absl::StatusOr<std::vector<std::string>> jobs = NamesIn(folder);
  if (!jobs.ok()) {
    *report.mutable_held() = before.held();
    return;
  }
  for (const std::string& job : *jobs) AddHeldOf(folder, job, before, report);
}

void AddData(const std::string& folder, const v1::NodeReport&, v1::NodeReport& report) {
  const absl::StatusOr<FileDigest> manifest = Sha256OfFile(folder + "/manifest.json");
  if (!manifest.ok()) return;
  v1::DataFolder& data = *report.add_data();
  data.set_path(AsUtf8(folder));
  data.set_manifest_sha256(manifest->sha256);
}

}  // namespace

std::optional<double> OtherLoad::Measure(const ProcessorTimes& times, absl::Duration monotonic) {
  if (last_ && monotonic - at_ < kShortestLoad) return load_;
  if (last_ && times.processors > 0) {
    absl::Duration own;
    for (const auto& [process, time] : times.of_program) {
      const auto before = last_->of_program.find(process);
      const bool same = before != last_->of_program.end() && before->second <= time;
      own += same ? time - before->second : time;
    }
    const absl::Duration others = times.busy - last_->busy - own;
    const double load = absl::FDivDuration(others, (monotonic - at_) * times.processors);
    load_ = std::clamp(load, 0.0, 1.0);
  }
  last_ = times;
  at_ = monotonic;
  return load_;
}

NodeFacts::NodeFacts(NodeFactsOptions options, Clock& clock)
    : options_(std::move(options)),
      clock_(clock),
      versions_(
          {.mpirun = options_.mpirun, .worker = options_.worker, .scratch = options_.state_dir},
          clock),
      energy_(EnergyMeter::Start()) {
  for (const std::string& folder : options_.job_folders) {
    folders_.emplace_back(folder, AddHeld, clock_);
  }
  for (const std::string& folder : options_.data_folders) {
    folders_.emplace_back(folder, AddData, clock_);
  }
  v1::AgentWelcome kept;
  const auto bytes = PosixFileSystem().Read(FoldersFile(), kFoldersBytesMax);
  if (bytes.ok() && kept.ParseFromString(*bytes)) UseFolders(kept.job_folder(), kept.warm_folder());
}

std::string NodeFacts::FoldersFile() const { return JoinPath(options_.state_dir, "folders"); }

void NodeFacts::NoteFolders(const v1::AgentWelcome& told) {
  if (told.job_folder() == told_folder_ && told.warm_folder() == warm_folder_) return;
  UseFolders(told.job_folder(), told.warm_folder());
  v1::AgentWelcome kept;
  kept.set_job_folder(told.job_folder());
  kept.set_warm_folder(told.warm_folder());
  const absl::Status written =
      WriteFileAtomically(PosixFileSystem(), FoldersFile(), kept.SerializeAsString());
  if (!written.ok()) LogWarning(absl::StrCat("not kept: ", written.message()));
}

void NodeFacts::UseFolders(const std::string& jobs, const std::string& warm) {
  if (jobs != told_folder_) {
    told_folder_ = jobs;
    told_.reset();
    if (!jobs.empty() && options_.job_folders.empty()) told_.emplace(jobs, AddHeld, clock_);
  }
  if (warm == warm_folder_) return;
  warm_folder_ = warm;
  warm_.reset();
  if (warm.empty()) return;
  const auto look = [node = options_.node](const std::string& folder, const v1::NodeReport& before,
                                           v1::NodeReport& report) {
    AddWarm(folder, node, before, report);
  };
  v1::NodeReport before;
  before.set_warm_unknown(true);
  warm_.emplace(warm, look, clock_, before);
}

void NodeFacts::Drop(const v1::DropWarm& command) {
  if (!warm_) return;
  warm_->Do([node = options_.node, command](const std::string& folder) {
    DropWarm(folder, node, command);
  });
}

// What is read while somebody writes it is not whole: then what was there before counts.
void NodeFacts::ReadConditionFile() {
  const auto json = PosixFileSystem().Read(options_.condition_file, kConditionBytesMax);
  if (!json.ok()) {
    given_condition_.Clear();
    return;
  }
  v1::NodeCondition given;
  const auto read = google::protobuf::util::JsonStringToMessage(*json, &given);
  if (read.ok()) given_condition_ = std::move(given);
  const std::string problem = read.ok() ? "" : std::string(read.message());
  if (problem != condition_problem_ && !read.ok()) {
    LogWarning(absl::StrCat(options_.condition_file, ": ", problem));
  }
  condition_problem_ = problem;
}

void NodeFacts::FillCondition(v1::NodeCondition& condition) {
  const MachineCondition system = ReadMachineCondition();
  condition.set_memory(ToProto(system.memory));
  condition.set_heat(ToProto(system.heat));
  condition.set_power(ToProto(system.power));
  if (system.battery_percent) condition.set_battery_percent(*system.battery_percent);
  if (energy_ != nullptr) condition.set_energy_joules(energy_->Joules());
  if (const auto times = ReadProcessorTimes(kWorkerProgram); times.ok()) {
    const auto load = other_load_.Measure(*times, clock_.Monotonic());
    if (load) condition.set_other_load(*load);
  }
  if (!options_.condition_file.empty()) ReadConditionFile();
  condition.MergeFrom(given_condition_);
}

v1::NodeReport NodeFacts::Report() {
  versions_.Look();
  v1::NodeReport report;
  *report.mutable_versions() = versions_.versions();
  FillResources(options_.state_dir, *report.mutable_resources());
  FillCondition(*report.mutable_condition());
  for (FolderWatch& folder : folders_) folder.AddLatest(report);
  if (told_) told_->AddLatest(report);
  if (warm_) warm_->AddLatest(report);
  const absl::Time now = clock_.Now();
  report.set_unix_seconds(absl::ToDoubleSeconds(now - absl::UnixEpoch()));
  report.set_utc_offset_seconds(UtcOffsetSeconds(now));
  return report;
}

}  // namespace espalier
