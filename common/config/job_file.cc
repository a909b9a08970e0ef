#include "common/config/job_file.h"

#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/file_system.h"
#include "common/base/status_macros.h"
#include "common/config/expand_paths.h"
#include "common/config/job_rules.h"
#include "common/config/overrides.h"
#include "common/config/problems.h"
#include "common/config/reference.h"
#include "common/config/rule_check.h"
#include "common/config/yaml_reader.h"
#include "common/config/yaml_tree.h"
#include "common/config/yaml_writer.h"

namespace espalier {
namespace {

// "Default: min_nodes".
void FillDerivedDefaults(v1::JobSpec& spec) {
  v1::ParallelSpec& parallel = *spec.mutable_parallel();
  if (!parallel.has_max_nodes()) parallel.set_max_nodes(parallel.min_nodes());
}

}  // namespace

absl::StatusOr<v1::JobSpec> LoadJobText(const JobText& text) {
  auto source =
      std::make_shared<const YamlSource>(YamlSource{.name = text.origin, .folder = text.folder});
  ASSIGN_OR_RETURN(YamlNode root, ParseYaml(text.yaml, source));
  std::error_code error;
  const std::string here = std::filesystem::current_path(error).string();
  for (const std::string& setting : text.overrides) {
    RETURN_IF_ERROR(ApplyOverride(setting, here, root));
  }
  Problems problems;
  YamlReader reader(problems);
  v1::JobSpec spec;
  reader.Read(root, "", spec);
  reader.FillDefaults(root.kind == YamlNode::Kind::kMap ? &root : nullptr, "", spec);
  FillDerivedDefaults(spec);
  // Values that were refused are absent, so rules between fields would only add confusion.
  if (problems.empty()) CheckJobRules(spec, text.origin, problems);
  RETURN_IF_ERROR(problems.ToStatus());
  return spec;
}

absl::StatusOr<v1::JobSpec> LoadJobFile(const std::string& path,
                                        const std::vector<std::string>& overrides) {
  ASSIGN_OR_RETURN(const std::string yaml, PosixFileSystem().Read(path, kYamlBytesMax));
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::absolute(path, error).parent_path();
  if (error) return absl::InvalidArgumentError(absl::StrCat(path, ": ", error.message()));
  return LoadJobText(
      {.yaml = yaml, .origin = path, .folder = folder.string(), .overrides = overrides});
}

absl::Status ValidateJobSpec(const v1::JobSpec& spec) {
  Problems problems;
  CheckRules(spec, "", problems);
  if (problems.empty()) CheckJobRules(spec, "", problems);
  return problems.ToStatus();
}

void FillJobDefaults(v1::JobSpec& spec) {
  FillDefaultValues(spec);
  FillDerivedDefaults(spec);
}

absl::Status ExpandJobPaths(v1::JobSpec& spec) { return ExpandPaths("", spec); }

std::string JobSpecToYaml(const v1::JobSpec& spec) { return MessageToYaml(spec); }

std::string JobFileReference() { return ReferenceOf(*v1::JobSpec::descriptor()); }

}  // namespace espalier
