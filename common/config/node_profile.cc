#include "common/config/node_profile.h"

#include <memory>
#include <set>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/file_system.h"
#include "common/base/nearest.h"
#include "common/base/status_macros.h"
#include "common/config/names.h"
#include "common/config/yaml_reader.h"
#include "common/config/yaml_tree.h"

namespace espalier {
namespace {

constexpr char kSuffix[] = ".yaml";

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
  if (const auto near = Nearest(name, {names.begin(), names.end()})) {
    absl::StrAppend(&text, "; did you mean '", *near, "'?");
  }
  absl::StrAppend(&text, " allowed: ", absl::StrJoin(names, ", "));
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

}  // namespace espalier
