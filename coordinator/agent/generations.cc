#include "coordinator/agent/generations.h"

#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/file_system.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "common/config/open_mpi.h"
#include "common/config/rules.h"
#include "common/observe/log.h"
#include "coordinator/agent/daemon_command.h"

extern char** environ;

namespace espalier {
namespace {

constexpr int64_t kRecordBytesMax = 4096;
constexpr int64_t kOutputBytesMax = 1 << 20;
constexpr size_t kOutputKept = 4096;

// A job id is part of a path here.
absl::Status CheckName(const v1::GenerationName& name) {
  if (IsJobId(name.job_id()) && name.generation() > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("'", AsUtf8(name.job_id()), "' generation ",
                                                 name.generation(), " is no generation of a job"));
}

// What the daemon and its ranks get of the agent's own environment: what the node's owner set for
// them, and nothing that changes which code runs.
bool IsPassedOn(absl::string_view name) {
  constexpr absl::string_view kNames[] = {"PATH",
                                          "HOME",
                                          "USER",
                                          "LOGNAME",
                                          "SHELL",
                                          "LANG",
                                          "TZ",
                                          "LD_LIBRARY_PATH",
                                          "DYLD_LIBRARY_PATH",
                                          "XDG_CACHE_HOME",
                                          "OMP_NUM_THREADS"};
  for (absl::string_view known : kNames) {
    if (name == known) return true;
  }
  return absl::StartsWith(name, "LC_") || absl::StartsWith(name, "CUDA_") ||
         absl::StartsWith(name, "PYTORCH_");
}

std::vector<std::string> DaemonEnvironment(const std::string& temporary_folder) {
  std::vector<std::string> environment = {"TMPDIR=" + temporary_folder};
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const absl::string_view text = *entry;
    if (IsPassedOn(text.substr(0, text.find('=')))) environment.emplace_back(text);
  }
  if (geteuid() == 0) {
    const std::vector<std::string> root = RootEnvironment();
    environment.insert(environment.end(), root.begin(), root.end());
  }
  return environment;
}

struct Record {
  ProcessIdentity daemon;
  double orphan_limit_seconds = 0;
};

std::string RecordText(const Record& record) {
  return absl::StrCat(record.daemon.pid, " ", record.daemon.start, " ", record.orphan_limit_seconds,
                      "\n");
}

std::optional<Record> ParseRecord(absl::string_view text) {
  const std::vector<std::string> fields =
      absl::StrSplit(absl::StripAsciiWhitespace(text), ' ', absl::SkipEmpty());
  Record record;
  if (fields.size() != 3 || !absl::SimpleAtoi(fields[0], &record.daemon.pid) ||
      !absl::SimpleAtod(fields[2], &record.orphan_limit_seconds)) {
    return std::nullopt;
  }
  record.daemon.start = fields[1];
  return record;
}

// A daemon may run that nobody knows of; its end must not be confirmed.
absl::Status CannotTell(const absl::Status& error, const std::string& root) {
  return absl::Status(
      error.code(),
      absl::StrCat("cannot tell what an earlier agent left running: ", error.message(),
                   "; mend that, or end what still runs of it (a "
                   "restart of the machine does) and remove its folder in ",
                   root));
}

std::string Tail(const std::string& path) {
  absl::StatusOr<std::string> text = PosixFileSystem().Read(path, kOutputBytesMax);
  if (!text.ok()) return "";
  if (text->size() > kOutputKept) text->erase(0, text->size() - kOutputKept);
  return AsUtf8(*text);
}

}  // namespace

GenerationKey KeyOf(const v1::GenerationName& name) {
  return {JobId(name.job_id()), Generation(name.generation())};
}

v1::GenerationName NameOf(const GenerationKey& key) {
  v1::GenerationName name;
  name.set_job_id(key.job.text());
  name.set_generation(key.generation.value());
  return name;
}

absl::StatusOr<Generations> Generations::Open(GenerationsOptions options) {
  Generations generations(std::move(options));
  RETURN_IF_ERROR(generations.TakeOver());
  return generations;
}

std::string Generations::Folder(const GenerationKey& key) const {
  return absl::StrCat(options_.state_dir, "/generations/", key.job.text(), ".",
                      key.generation.value());
}

absl::Status Generations::TakeOver() {
  FileSystem& files = PosixFileSystem();
  const std::string root = options_.state_dir + "/generations";
  RETURN_IF_ERROR(MakeDurableDirectory(files, root));
  ASSIGN_OR_RETURN(const std::vector<std::string> names, files.List(root));
  for (const std::string& name : names) {
    const std::string folder = absl::StrCat(root, "/", name);
    std::error_code unknown;
    if (std::filesystem::is_regular_file(folder, unknown)) continue;  // of Finder: .DS_Store
    const size_t dot = name.rfind('.');
    int64_t number = 0;
    const absl::StatusOr<std::string> text = files.Read(folder + "/record", kRecordBytesMax);
    if (!text.ok() && !absl::IsNotFound(text.status())) return CannotTell(text.status(), root);
    const std::optional<Record> record = text.ok() ? ParseRecord(*text) : std::nullopt;
    if (dot == std::string::npos || !absl::SimpleAtoi(name.substr(dot + 1), &number) || !record) {
      // A folder without its record: the agent ended before the gate of its daemon was opened.
      RETURN_IF_ERROR(files.Remove(folder));
      continue;
    }
    entries_[{JobId(name.substr(0, dot)), Generation(number)}] = {
        .daemon = record->daemon, .orphan_limit = absl::Seconds(record->orphan_limit_seconds)};
  }
  return absl::OkStatus();
}

absl::StatusOr<GatedProcess> Generations::Spawn(const v1::StartDaemon& request,
                                                const std::string& folder) {
  const std::vector<std::string> words(request.command().begin(), request.command().end());
  ASSIGN_OR_RETURN(const DaemonCommand command, ParseDaemonCommand(words));
  if (!command.left_out.empty()) {
    LogWarning(absl::StrCat("mpirun gives its daemon parameters that this agent does not know; ",
                            command.program,
                            " runs without them: ", absl::StrJoin(command.left_out, ", ")));
  }
  const std::string program = absl::StrCat(options_.open_mpi_folder, "/", command.program);
  if (access(program.c_str(), X_OK) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("mpirun asks for ", command.program, ", and this node has no ", program,
                     "; install the same version of Open MPI on every node"));
  }
  const std::string temporary = folder + "/tmp";
  RETURN_IF_ERROR(MakeDurableDirectory(PosixFileSystem(), temporary));
  std::vector<std::string> argv = {program};
  argv.insert(argv.end(), command.arguments.begin(), command.arguments.end());
  return GatedProcess::Spawn({.argv = std::move(argv),
                              .environment = DaemonEnvironment(temporary),
                              .inherit = SpawnOptions::Inherit::kNothing,
                              .folder = folder,
                              .log_path = folder + "/output"});
}

absl::StatusOr<int64_t> Generations::Start(const v1::StartDaemon& request) {
  RETURN_IF_ERROR(CheckName(request.generation()));
  const GenerationKey key = KeyOf(request.generation());
  if (entries_.count(key) > 0) {
    return absl::AlreadyExistsError(absl::StrCat("generation ", key.generation.value(), " of job ",
                                                 key.job.text(), " runs on this node already"));
  }
  const std::string folder = Folder(key);
  absl::StatusOr<GatedProcess> process = Spawn(request, folder);
  absl::Status status = process.status();
  if (status.ok()) {
    const Record record = {process->identity(), request.orphan_limit_seconds()};
    status = WriteFileAtomically(PosixFileSystem(), folder + "/record", RecordText(record));
  }
  if (!status.ok()) {
    PosixFileSystem().Remove(folder).IgnoreError();
    return status;
  }
  process->Release();
  entries_[key] = {.daemon = process->identity(),
                   .own_child = true,
                   .exec_id = request.exec_id(),
                   .orphan_limit = absl::Seconds(request.orphan_limit_seconds())};
  return process->identity().pid;
}

void Generations::End(const GenerationKey& key) {
  const auto found = entries_.find(key);
  if (found == entries_.end()) {
    unknown_.push_back(key);
  } else {
    found->second.end_wanted = true;
  }
}

void Generations::EndOrphans(absl::Duration alone) {
  for (auto& [key, entry] : entries_) {
    if (entry.end_wanted || alone < entry.orphan_limit) continue;
    LogWarning(absl::StrCat("ending generation ", key.generation.value(), " of job ",
                            key.job.text(), ": espalierd was not heard of for ",
                            absl::FormatDuration(entry.orphan_limit)));
    entry.end_wanted = true;
  }
}

// Whether nothing of the generation is left; ends what is to be ended.
bool Generations::Gone(Entry& entry, absl::Duration now) {
  if (entry.own_child && !entry.exit) {
    absl::StatusOr<std::optional<ExitStatus>> exit = PollChild(entry.daemon.pid);
    if (!exit.ok()) entry.exit = ExitStatus{};
    if (exit.ok() && exit->has_value()) entry.exit = **exit;
  }
  const bool ended = entry.own_child ? entry.exit.has_value() : !IsAlive(entry.daemon);
  if (ended) return SignalSession(entry.daemon, SIGKILL) == 0;  // ranks that outlived it
  if (!entry.end_wanted) return false;
  if (!entry.kill_at) {
    entry.kill_at = now + options_.grace;
    SignalSession(entry.daemon, SIGTERM);
  } else if (now >= *entry.kill_at) {
    SignalSession(entry.daemon, SIGKILL);
  }
  return false;
}

void Generations::Report(const GenerationKey& key, const Entry& entry,
                         std::vector<v1::AgentMessage>& news) {
  if (entry.own_child) {
    v1::DaemonExited& exited = *news.emplace_back().mutable_exited();
    exited.set_exec_id(entry.exec_id);
    exited.set_code(entry.exit->code);
    exited.set_signal(entry.exit->signal);
    exited.set_output(Tail(Folder(key) + "/output"));
  }
  *news.emplace_back().mutable_gone()->mutable_generation() = NameOf(key);
}

std::vector<v1::AgentMessage> Generations::Poll(absl::Duration now) {
  std::vector<v1::AgentMessage> news;
  for (const GenerationKey& key : std::exchange(unknown_, {})) {
    *news.emplace_back().mutable_gone()->mutable_generation() = NameOf(key);
  }
  for (auto it = entries_.begin(); it != entries_.end();) {
    if (!Gone(it->second, now)) {
      ++it;
      continue;
    }
    Report(it->first, it->second, news);
    const absl::Status removed = PosixFileSystem().Remove(Folder(it->first));
    if (!removed.ok()) LogWarning(absl::StrCat("leaves a folder behind: ", removed.message()));
    it = entries_.erase(it);
  }
  return news;
}

std::vector<GenerationKey> Generations::running() const {
  std::vector<GenerationKey> keys;
  for (const auto& [key, entry] : entries_) keys.push_back(key);
  return keys;
}

bool Generations::ending() const {
  for (const auto& [key, entry] : entries_) {
    if (entry.end_wanted || entry.exit) return true;
  }
  return false;
}

}  // namespace espalier
