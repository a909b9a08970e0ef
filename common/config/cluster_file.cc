#include "common/config/cluster_file.h"

#include <filesystem>
#include <memory>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/file_system.h"
#include "common/base/nearest.h"
#include "common/base/status_macros.h"
#include "common/config/field_rule.h"
#include "common/config/rules.h"
#include "common/config/yaml_reader.h"
#include "common/config/yaml_tree.h"

namespace espalier {
namespace {

constexpr char kSuffix[] = ".yaml";
constexpr char kShippedProfiles[] = ESPALIER_SOURCE_DIR "/configs/nodes";

absl::Status UnknownProfile(const std::string& name, const std::vector<std::string>& folders) {
  std::set<std::string> names;
  for (const std::string& folder : folders) {
    const auto files = PosixFileSystem().List(folder);
    if (!files.ok()) continue;
    for (const std::string& file : *files) {
      if (absl::EndsWith(file, kSuffix)) names.insert(file.substr(0, file.size() - 5));
    }
  }
  std::string text =
      absl::StrCat("there is no profile ", Quoted(name), " in ", absl::StrJoin(folders, ", "));
  const auto near = Nearest(name, {names.begin(), names.end()});
  absl::StrAppend(&text, "; ",
                  near ? absl::StrCat("did you mean '", *near, "'? Allowed: ") : "allowed: ",
                  absl::StrJoin(names, ", "));
  return absl::NotFoundError(text);
}

// A profile describes a kind of machine, so it holds nothing that belongs to one machine.
void RefuseOwnFields(const YamlNode& root, Problems& problems) {
  for (const char* key : {"name", "address", "profile", "tls", "worker"}) {
    if (const YamlNode* found = root.Find(key)) {
      problems.Add(Where(*found->source, found->line),
                   absl::StrCat(key, " belongs to a node of a cluster file, not to a profile"));
    }
  }
}

absl::StatusOr<v1::NodeSpec> ReadProfile(const std::string& path, const std::string& yaml) {
  auto source = std::make_shared<const YamlSource>(YamlSource{.name = path});
  ASSIGN_OR_RETURN(const YamlNode root, ParseYaml(yaml, source));
  Problems problems;
  v1::NodeSpec profile;
  YamlReader(problems).Read(root, "", profile);
  RefuseOwnFields(root, problems);
  RETURN_IF_ERROR(problems.ToStatus());
  return profile;
}

std::string PlaceOfProfile(const YamlNode& root, int index) {
  const YamlNode* nodes = root.Find("nodes");
  const auto i = static_cast<size_t>(index);
  const YamlNode* profile =
      nodes != nullptr && i < nodes->items.size() ? nodes->items[i].Find("profile") : nullptr;
  return profile == nullptr ? root.source->name : Where(*profile->source, profile->line);
}

// Puts the fields of each node's profile under those it gives itself.
void MergeProfiles(const YamlNode& root, const std::vector<std::string>& folders,
                   v1::ClusterSpec& spec, Problems& problems) {
  for (int i = 0; i < spec.nodes_size(); ++i) {
    v1::NodeSpec& node = *spec.mutable_nodes(i);
    if (!node.has_profile()) continue;
    absl::StatusOr<v1::NodeSpec> merged = LoadNodeProfile(node.profile(), folders);
    if (!merged.ok()) {
      problems.Add(PlaceOfProfile(root, i),
                   absl::StrCat("nodes[", i, "].profile: ", merged.status().message()));
      continue;
    }
    merged->MergeFrom(node);
    node = *std::move(merged);
  }
}

}  // namespace

absl::StatusOr<v1::NodeSpec> LoadNodeProfile(const std::string& name,
                                             const std::vector<std::string>& folders) {
  if (!IsName(name)) return UnknownProfile(name, folders);
  for (const std::string& folder : folders) {
    const std::string path = JoinPath(folder, name + kSuffix);
    const absl::StatusOr<std::string> yaml = PosixFileSystem().Read(path, kYamlBytesMax);
    if (absl::IsNotFound(yaml.status())) continue;
    RETURN_IF_ERROR(yaml.status());
    return ReadProfile(path, *yaml);
  }
  return UnknownProfile(name, folders);
}

absl::StatusOr<v1::ClusterSpec> LoadClusterText(const ClusterText& text) {
  auto source =
      std::make_shared<const YamlSource>(YamlSource{.name = text.origin, .folder = text.folder});
  ASSIGN_OR_RETURN(const YamlNode root, ParseYaml(text.yaml, source));
  Problems problems;
  YamlReader reader(problems);
  v1::ClusterSpec spec;
  reader.Read(root, "", spec);
  MergeProfiles(root, text.profile_folders, spec, problems);
  reader.FillDefaults(root.kind == YamlNode::Kind::kMap ? &root : nullptr, "", spec);
  if (problems.empty()) CheckClusterRules(spec, text.origin, problems);
  RETURN_IF_ERROR(problems.ToStatus());
  return spec;
}

void FillNodeDefaults(v1::NodeSpec& node) { FillDefaultValues(node); }

absl::StatusOr<v1::NodeSpec> LoadShippedProfile(const std::string& name) {
  return LoadNodeProfile(name, {kShippedProfiles});
}

absl::StatusOr<v1::ClusterSpec> LoadClusterFile(const std::string& path,
                                                const std::vector<std::string>& profile_folders) {
  ASSIGN_OR_RETURN(const std::string yaml, PosixFileSystem().Read(path, kYamlBytesMax));
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::absolute(path, error).parent_path();
  if (error) return absl::InvalidArgumentError(absl::StrCat(path, ": ", error.message()));
  std::vector<std::string> folders{(folder / "nodes").string(),
                                   (folder.parent_path() / "nodes").string()};
  folders.insert(folders.end(), profile_folders.begin(), profile_folders.end());
  folders.push_back(kShippedProfiles);
  return LoadClusterText({.yaml = yaml,
                          .origin = path,
                          .folder = folder.string(),
                          .profile_folders = std::move(folders)});
}

absl::Status ValidateClusterSpec(const v1::ClusterSpec& spec) {
  Problems problems;
  CheckRules(spec, "", problems);
  if (problems.empty()) CheckClusterRules(spec, "", problems);
  return problems.ToStatus();
}

std::string ClusterFileReference() { return ReferenceOf(*v1::ClusterSpec::descriptor()); }

}  // namespace espalier
