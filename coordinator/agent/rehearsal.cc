#include "coordinator/agent/rehearsal.h"

#include <signal.h>

#include <optional>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/file_system.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "common/platform/process.h"

namespace espalier {
namespace {

constexpr int64_t kOutputBytesMax = 1 << 20;
constexpr int64_t kRecordBytesMax = 4096;
constexpr size_t kLongest = 300;

// "2026-11-24T08:00:00Z error data.path ..." -> "data.path ...".
absl::string_view WithoutLogPrefix(absl::string_view line) {
  for (const absl::string_view level : {"Z error ", "Z warning ", "Z info "}) {
    const size_t at = line.find(level);
    if (at != absl::string_view::npos) return line.substr(at + level.size());
  }
  return line;
}

}  // namespace

RehearsalRunner::RehearsalRunner(Options options) : options_(std::move(options)) {
  const std::string text = PosixFileSystem().Read(RecordPath(), kRecordBytesMax).value_or("");
  const std::vector<std::string> fields =
      absl::StrSplit(absl::StripAsciiWhitespace(text), ' ', absl::SkipEmpty());
  ProcessIdentity left;
  if (fields.size() != 2 || !absl::SimpleAtoi(fields[0], &left.pid)) return;
  left.start = fields[1];
  SignalSession(left, SIGKILL);
}

void RehearsalRunner::Ask(const v1::RehearseJob& request, absl::Duration now) {
  asked_at_ = now;
  if (!rehearsal_.job_id().empty() && request_ == request.SerializeAsString()) return;
  Forget();
  request_ = request.SerializeAsString();
  Begin(request, now);
}

void RehearsalRunner::Begin(const v1::RehearseJob& request, absl::Duration now) {
  rehearsal_.set_job_id(request.job_id());
  rehearsal_.set_state(v1::REHEARSAL_STATE_RUNNING);
  told_at_ = now;
  const absl::StatusOr<ProcessIdentity> process = Spawn(request);
  if (process.ok()) {
    process_ = *process;
    return;
  }
  Fail(AsUtf8(std::string(process.status().message())), now);
}

void RehearsalRunner::Fail(std::string text, absl::Duration now) {
  rehearsal_.set_state(v1::REHEARSAL_STATE_FAILED);
  rehearsal_.set_text(std::move(text));
  ended_at_ = now;
}

absl::StatusOr<ProcessIdentity> RehearsalRunner::Spawn(const v1::RehearseJob& request) {
  FileSystem& files = PosixFileSystem();
  RETURN_IF_ERROR(files.Remove(options_.folder));
  RETURN_IF_ERROR(files.MakeDirectory(options_.folder));
  const std::string path = options_.folder + "/request";
  RETURN_IF_ERROR(WriteFileAtomically(files, path, request.SerializeAsString()));
  const std::string& worker = request.worker().empty() ? options_.worker : request.worker();
  ASSIGN_OR_RETURN(GatedProcess process,
                   GatedProcess::Spawn({.argv = {worker, "rehearse", "request"},
                                        .folder = options_.folder,
                                        .log_path = options_.folder + "/output"}));
  const ProcessIdentity& identity = process.identity();
  RETURN_IF_ERROR(WriteFileAtomically(files, RecordPath(),
                                      absl::StrCat(identity.pid, " ", identity.start, "\n")));
  process.Release();
  return process.identity();
}

bool RehearsalRunner::Lapsed(absl::Duration now) const {
  switch (rehearsal_.state()) {
    case v1::REHEARSAL_STATE_READY:
      return now - ended_at_ > kLasts;
    case v1::REHEARSAL_STATE_FAILED:
      return now - ended_at_ > kAgain;
    default:
      return now - asked_at_ > kForget;
  }
}

bool RehearsalRunner::Poll(absl::Duration now) {
  std::erase_if(killed_, [](int64_t pid) {
    const absl::StatusOr<std::optional<ExitStatus>> exit = PollChild(pid);
    return !exit.ok() || exit->has_value();
  });
  if (rehearsal_.job_id().empty()) return false;
  if (Lapsed(now)) {
    Forget();
    return true;
  }
  if (rehearsal_.state() != v1::REHEARSAL_STATE_RUNNING) return false;
  const absl::StatusOr<std::optional<ExitStatus>> exit = PollChild(process_.pid);
  std::string line = LastLine();
  if (exit.ok() && !exit->has_value()) {
    if (line != rehearsal_.text()) told_at_ = now;
    rehearsal_.set_text(std::move(line));
    if (now - told_at_ <= kSilent) return false;
    Kill();
    Fail(absl::StrCat("espalier-worker has said nothing new for ", absl::FormatDuration(kSilent),
                      " while it tried",
                      rehearsal_.text().empty() ? "" : ", after: ", rehearsal_.text()),
         now);
    return true;
  }
  if (exit.ok() && (*exit)->code == 0 && (*exit)->signal == 0) {
    rehearsal_.set_state(v1::REHEARSAL_STATE_READY);
    rehearsal_.set_text(std::move(line));
    ended_at_ = now;
  } else {
    Fail(line.empty() ? "espalier-worker ended without a word" : std::move(line), now);
  }
  return true;
}

std::string RehearsalRunner::LastLine() const {
  const absl::StatusOr<std::string> text =
      PosixFileSystem().Read(options_.folder + "/output", kOutputBytesMax);
  if (!text.ok()) return "";
  const std::vector<absl::string_view> lines =
      absl::StrSplit(absl::StripAsciiWhitespace(*text), '\n');
  std::string line(WithoutLogPrefix(lines.back()));
  if (line.size() > kLongest) line.resize(kLongest);
  return AsUtf8(line);
}

void RehearsalRunner::AddTo(v1::NodeReport& report) const {
  if (!rehearsal_.job_id().empty()) *report.mutable_rehearsal() = rehearsal_;
}

void RehearsalRunner::Kill() {
  SignalSession(process_, SIGKILL);
  killed_.push_back(process_.pid);
  process_ = {};
}

void RehearsalRunner::Forget() {
  const bool runs = !rehearsal_.job_id().empty() &&
                    rehearsal_.state() == v1::REHEARSAL_STATE_RUNNING && process_.pid != 0;
  if (runs) Kill();
  rehearsal_.Clear();
}

}  // namespace espalier
