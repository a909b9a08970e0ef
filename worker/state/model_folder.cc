#include "worker/state/model_folder.h"

#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/base/file_system.h"
#include "common/base/status_macros.h"
#include "common/observe/log.h"
#include "worker/state/checkpoint_store.h"

namespace espalier {
namespace {

bool IsModel(const absl::StatusOr<std::vector<std::string>>& names) {
  return names.ok() && absl::c_linear_search(*names, "config.json");
}

absl::Status NoModel(const std::string& folder,
                     const absl::StatusOr<std::vector<std::string>>& names) {
  const std::string seen = names.ok() ? "it holds no config.json and no checkpoint (step-...)"
                                      : std::string(names.status().message());
  return absl::InvalidArgumentError(
      absl::StrCat("no model in ", folder, ": ", seen,
                   "; give a checkpoint, a folder of checkpoints, or a folder of a model in the "
                   "Hugging Face layout"));
}

}  // namespace

absl::StatusOr<std::string> FindModelFolder(const std::string& folder) {
  const absl::StatusOr<std::vector<std::string>> names = PosixFileSystem().List(folder);
  if (IsModel(names)) return folder;
  const CheckpointStore store(PosixFileSystem(), {.directory = folder});
  const absl::StatusOr<FoundCheckpoint> found = store.FindNewest();
  if (!found.ok() || (!found->newest && found->rejected.empty())) return NoModel(folder, names);
  for (const RejectedCheckpoint& rejected : found->rejected) {
    LogWarning(absl::StrCat("passed over ", rejected.folder, ": ", rejected.reason.message()));
  }
  if (!found->newest) return found->rejected.front().reason;
  LogInfo(absl::StrCat(folder, " holds checkpoints; taking ", found->newest->folder()));
  return found->newest->folder();
}

}  // namespace espalier
