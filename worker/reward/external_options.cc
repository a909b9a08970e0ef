#include <cmath>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "worker/reward/external_verifier.h"

namespace espalier {
namespace {

absl::Status CheckFolder(const std::string& folder) {
  std::error_code error;
  if (folder.empty() || std::filesystem::is_directory(folder, error)) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat(
      "the folder in which the verifier is to run, '", folder, "' does not exist on this machine; ",
      "make it on every node that trains, or give train.verifier.folder (by default the folder of "
      "the job file)"));
}

}  // namespace

absl::Status CheckOptions(const ExternalVerifierOptions& options) {
  const auto refuse = [](auto... what) {
    return absl::InvalidArgumentError(absl::StrCat("the verifier is to have ", what...));
  };
  if (options.command.empty()) return refuse("no program; name one, and its arguments");
  if (options.processes < 1 || options.processes > 256) {
    return refuse(options.processes, " processes; allowed: 1 to 256");
  }
  if (options.in_flight < 1 || options.in_flight > 4096) {
    return refuse(options.in_flight, " completions in flight; allowed: 1 to 4096");
  }
  if (options.failures_max < 1 || options.failures_max > 20) {
    return refuse(options.failures_max, " failures in a row; allowed: 1 to 20");
  }
  if (options.time_limit <= absl::ZeroDuration()) {
    return refuse("a time limit of ", absl::FormatDuration(options.time_limit),
                  "; it must be longer");
  }
  if (!std::isfinite(options.failed_reward)) return refuse("a failed_reward that is not finite");
  return CheckFolder(options.folder);
}

std::string StartHint(const std::vector<std::string>& command) {
  const std::vector<absl::string_view> words =
      absl::StrSplit(command.front(), ' ', absl::SkipEmpty());
  if (words.size() < 2) return "";
  return absl::StrCat("; the command is a list, which no shell takes apart: [",
                      absl::StrJoin(words, ", "), "]");
}

}  // namespace espalier
