#include "coordinator/agent/device_trial.h"

#include <google/protobuf/util/json_util.h>
#include <signal.h>

#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/file_system.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "common/platform/process.h"

namespace espalier {
namespace {

constexpr int64_t kBytesMax = 1 << 16;
constexpr size_t kWordsMax = 300;

std::string LastLineOf(const std::string& path) {
  const std::string text = PosixFileSystem().Read(path, kBytesMax).value_or("");
  const std::vector<absl::string_view> lines =
      absl::StrSplit(absl::StripAsciiWhitespace(text), '\n');
  return AsUtf8(std::string(lines.back().substr(0, kWordsMax)));
}

std::optional<v1::DeviceTrial> ReadResult(const std::string& path) {
  const absl::StatusOr<std::string> json = PosixFileSystem().Read(path, kBytesMax);
  v1::DeviceTrial trial;
  const bool read = json.ok() && google::protobuf::util::JsonStringToMessage(*json, &trial).ok();
  return read ? std::optional(std::move(trial)) : std::nullopt;
}

}  // namespace

absl::StatusOr<ProcessIdentity> DeviceTrialRunner::Spawn() const {
  FileSystem& files = PosixFileSystem();
  RETURN_IF_ERROR(files.Remove(options_.folder));
  RETURN_IF_ERROR(files.MakeDirectory(options_.folder));
  ASSIGN_OR_RETURN(
      GatedProcess process,
      GatedProcess::Spawn({.argv = {options_.worker, "self-test", "--result", "result"},
                           .folder = options_.folder,
                           .log_path = options_.folder + "/output"}));
  process.Release();
  return process.identity();
}

bool DeviceTrialRunner::Begin(absl::Duration now) {
  const absl::StatusOr<ProcessIdentity> process = Spawn();
  if (!process.ok()) return Fail(std::string(process.status().message()), now);
  process_ = *process;
  begun_at_ = now;
  return false;
}

bool DeviceTrialRunner::Fail(std::string why, absl::Duration now) {
  trial_.Clear();
  trial_.set_error(AsUtf8(std::move(why)));
  process_ = {};
  next_at_ = now + kAgain;
  return true;
}

bool DeviceTrialRunner::Poll(bool idle, absl::Duration now) {
  std::erase_if(killed_, [](int64_t pid) {
    const absl::StatusOr<std::optional<ExitStatus>> exit = PollChild(pid);
    return !exit.ok() || exit->has_value();
  });
  if (known_) return false;
  if (process_.pid == 0) return idle && now >= next_at_ ? Begin(now) : false;
  if (!idle) {
    Stop();
    return false;
  }
  const absl::StatusOr<std::optional<ExitStatus>> exit = PollChild(process_.pid);
  if (exit.ok() && !exit->has_value()) {
    if (now - begun_at_ <= kLongest) return false;
    Stop();
    return Fail(
        absl::StrCat("espalier-worker self-test took longer than ", absl::FormatDuration(kLongest)),
        now);
  }
  if (std::optional<v1::DeviceTrial> found = ReadResult(ResultPath())) {
    trial_ = *std::move(found);
    process_ = {};
    known_ = true;
    return true;
  }
  const std::string words = LastLineOf(options_.folder + "/output");
  return Fail(words.empty() ? "espalier-worker self-test ended without a word" : words, now);
}

void DeviceTrialRunner::Stop() {
  if (process_.pid == 0) return;
  SignalSession(process_, SIGKILL);
  killed_.push_back(process_.pid);
  process_ = {};
}

void DeviceTrialRunner::AddTo(v1::NodeReport& report) const {
  const bool something = known_ || !trial_.error().empty();
  if (something) *report.mutable_device() = trial_;
}

}  // namespace espalier
