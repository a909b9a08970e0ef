#include "coordinator/service/job_folders.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/file_system.h"
#include "common/base/status_macros.h"
#include "coordinator/core/facts.h"
#include "coordinator/launcher/network.h"

namespace espalier {
namespace {

namespace fs = std::filesystem;

// Without links and ".."; what is not there yet stays as it is named.
absl::StatusOr<fs::path> Resolve(const std::string& configured) {
  ASSIGN_OR_RETURN(const std::string path, ExpandHome(configured));
  std::error_code error;
  const fs::path whole = fs::absolute(path, error);
  fs::path resolved = error ? fs::path() : fs::weakly_canonical(whole, error);
  if (error) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot tell where '", configured, "' lies: ", error.message()));
  }
  // A path that ends in '/' has an empty last part.
  return resolved.has_filename() ? resolved : resolved.parent_path();
}

bool LiesIn(const fs::path& path, const fs::path& folder) {
  return std::mismatch(folder.begin(), folder.end(), path.begin(), path.end()).first ==
         folder.end();
}

absl::Status CheckOne(const char* key, const std::string& asked,
                      const std::vector<std::string>& allowed) {
  if (asked.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const fs::path path, Resolve(asked));
  for (const std::string& folder : allowed) {
    ASSIGN_OR_RETURN(const fs::path root, Resolve(folder));
    if (LiesIn(path, root)) return absl::OkStatus();
  }
  const std::string meant = path == asked ? "" : absl::StrCat(" (", path.string(), ")");
  return absl::InvalidArgumentError(absl::StrCat(
      key, " is '", asked, "'", meant, ", where jobs may not write; allowed: folders within ",
      absl::StrJoin(allowed, ", "),
      ". Leave it out, or have its folder added to writable_folders "
      "in the cluster file"));
}

bool MustRunHere(const v1::ParallelSpec& parallel, const std::map<std::string, bool>& is_here) {
  int32_t here = 0, elsewhere = 0;
  for (const auto& [node, own] : is_here) {
    if (MayUse(parallel, NodeName(node))) ++(own ? here : elsewhere);
  }
  return here > 0 && elsewhere < parallel.min_nodes();
}

}  // namespace

std::map<std::string, bool> NodesHere(const View& view) {
  const std::vector<LocalNetwork> networks = LocalNetworks();
  std::map<std::string, bool> is_here;
  for (const auto& node : view.nodes) {
    is_here[node->name()] = IsOwnAddress(node->address(), networks);
  }
  return is_here;
}

absl::Status CheckWritableFolders(const v1::JobSpec& spec,
                                  const std::vector<std::string>& allowed) {
  if (spec.launch().mode() == v1::LAUNCH_MODE_EXTERNAL) return absl::OkStatus();
  RETURN_IF_ERROR(CheckOne("checkpoint.directory", spec.checkpoint().directory(), allowed));
  return CheckOne("launch.sample_log", spec.launch().sample_log(), allowed);
}

absl::Status CheckDataFolder(const v1::JobSpec& spec, const std::map<std::string, bool>& is_here) {
  if (spec.launch().mode() == v1::LAUNCH_MODE_EXTERNAL) return absl::OkStatus();
  if (!MustRunHere(spec.parallel(), is_here)) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::string folder, ExpandHome(spec.data().path()));
  const std::string manifest = JoinPath(folder, "manifest.json");
  const absl::Status opened = MappedFile::Open(manifest).status();
  if (opened.ok()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("data.path is '", spec.data().path(),
                   "', where no prepared data can be read on this machine (", opened.message(),
                   "); name the folder that `espalier data prepare --output FOLDER` made"));
}

}  // namespace espalier
