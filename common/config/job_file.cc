#include "common/config/job_file.h"

#include <filesystem>
#include <initializer_list>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/file_system.h"
#include "common/base/status_macros.h"
#include "common/config/epochs.h"
#include "common/config/field_rule.h"
#include "common/config/rules.h"
#include "common/config/yaml_reader.h"
#include "common/config/yaml_tree.h"
#include "common/config/yaml_writer.h"
#include "google/protobuf/message.h"

namespace espalier {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// Fields that another one stands for, which are no problem when absent and take no default.
struct LeftOut {
  bool steps = false;   // train.epochs
  bool warmup = false;  // train.schedule.warmup_ratio
};
LeftOut LeftOutOf(const v1::JobSpec& spec) {
  const v1::ScheduleSpec& schedule = spec.train().schedule();
  return {NeedsSamples(spec), schedule.has_warmup_ratio() && !schedule.has_warmup_steps()};
}

// "Default: min_nodes", and that of parallel.plan; `left_out` before any default was filled in.
void FillDerivedDefaults(const LeftOut& left_out, v1::JobSpec& spec) {
  if (left_out.steps) spec.mutable_train()->clear_steps();
  if (left_out.warmup) ResolveWarmup(spec);
  v1::ParallelSpec& parallel = *spec.mutable_parallel();
  if (!parallel.has_max_nodes()) parallel.set_max_nodes(parallel.min_nodes());
  if (!parallel.has_plan()) {
    parallel.set_plan(parallel.shares().empty() ? v1::PLAN_MODE_MEASURED : v1::PLAN_MODE_FIXED);
  }
}

absl::Status Refused(const YamlSource& source, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(source.name, ": ", why));
}

// The value of `key` in a section, made when absent. The node is a kNull or kMap.
YamlNode& Child(YamlNode& node, const std::string& key,
                const std::shared_ptr<const YamlSource>& source) {
  if (YamlNode* found = node.Find(key)) return *found;
  node.kind = YamlNode::Kind::kMap;
  node.entries.push_back({.key = key, .line = 0, .value = YamlNode{}});
  node.entries.back().value.source = source;
  return node.entries.back().value;
}

// Sets KEY.KEY=VALUE (VALUE as YAML) in `root`; sections that are absent are made. Relative paths
// in it are taken from `folder`. INVALID_ARGUMENT: no '=', an empty key, a key below a value.
absl::Status ApplyOverride(const std::string& setting, const std::string& folder, YamlNode& root) {
  const auto source = std::make_shared<const YamlSource>(
      YamlSource{.name = absl::StrCat("--set ", setting), .folder = folder, .has_lines = false});
  const size_t equals = setting.find('=');
  if (equals == std::string::npos) {
    return Refused(*source, "no '=' in it; write KEY=VALUE, for example train.steps=100");
  }
  const std::vector<std::string> keys = absl::StrSplit(setting.substr(0, equals), '.');
  YamlNode* node = &root;
  for (const std::string& key : keys) {
    if (key.empty()) return Refused(*source, "an empty key; write for example train.steps=100");
    if (node->kind != YamlNode::Kind::kMap && node->kind != YamlNode::Kind::kNull) {
      return Refused(*source, absl::StrCat(Quoted(key), " stands below ", Describe(*node),
                                           ", which is not a section"));
    }
    node = &Child(*node, key, source);
  }
  ASSIGN_OR_RETURN(*node, ParseYaml(absl::string_view(setting).substr(equals + 1), source));
  return absl::OkStatus();
}

// The node at the end of these keys, or null.
const YamlNode* Find(const YamlNode* node, std::initializer_list<absl::string_view> keys) {
  for (const absl::string_view key : keys) {
    if (node != nullptr) node = node->Find(key);
  }
  return node;
}

// Of a verifier that is a program of one's own: it is found, where its name has a slash, from where
// relative paths beside it are taken, and runs there unless the job says where. One with an
// absolute path may lie on nodes that have no folder of that name, and runs where the worker does.
void PlaceProgram(const YamlNode& root, v1::VerifierSpec& verifier, Problems& problems) {
  const YamlNode* node = Find(&root, {"train", "verifier", "command"});
  if (node == nullptr || verifier.command().empty()) return;
  const std::string first = verifier.command(0);
  const std::vector<absl::string_view> words = absl::StrSplit(first, ' ', absl::SkipEmpty());
  if (node->kind == YamlNode::Kind::kScalar && words.size() > 1) {
    problems.Add(Where(*node->source, node->line),
                 absl::StrCat("train.verifier.command is ", Quoted(first),
                              ", one text, and no shell takes it apart; write [",
                              absl::StrJoin(words, ", "), "]"));
    return;
  }
  const std::string& folder = node->source->folder;
  const bool absolute = absl::StartsWith(first, "/") || absl::StartsWith(first, "~");
  if (absl::StrContains(first, '/')) verifier.set_command(0, ResolvePath(first, folder));
  if (!verifier.has_folder() && !absolute && verifier.kind() == "external") {
    verifier.set_folder(folder);
  }
}

absl::Status ExpandPath(const std::string& field, std::string& path) {
  absl::StatusOr<std::string> expanded = ExpandHome(path);
  if (!expanded.ok()) {
    return absl::Status(expanded.status().code(),
                        absl::StrCat(field, ": ", expanded.status().message()));
  }
  path = *std::move(expanded);
  return absl::OkStatus();
}

// Applies ExpandHome to every single text field whose rule says that it is a path. `path` names the
// section in messages.
absl::Status ExpandPaths(const std::string& path, Message& message) {
  const auto& reflection = *message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    const std::string field_path = PathOf(path, NameOf(*field));
    if (field->is_repeated()) continue;
    if (IsSection(*field)) {
      RETURN_IF_ERROR(ExpandPaths(field_path, *reflection.MutableMessage(&message, field)));
    } else if (RuleOf(*field).path()) {
      std::string value = reflection.GetString(message, field);
      RETURN_IF_ERROR(ExpandPath(field_path, value));
      reflection.SetString(&message, field, std::move(value));
    }
  }
  return absl::OkStatus();
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
  if (spec.train().has_verifier()) {
    PlaceProgram(root, *spec.mutable_train()->mutable_verifier(), problems);
  }
  AddTaskSections(*spec.mutable_train());
  const LeftOut left_out = LeftOutOf(spec);
  reader.FillDefaults(root.kind == YamlNode::Kind::kMap ? &root : nullptr, "", spec);
  FillDerivedDefaults(left_out, spec);
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
  AddTaskSections(*spec.mutable_train());
  const LeftOut left_out = LeftOutOf(spec);
  FillDefaultValues(spec);
  FillDerivedDefaults(left_out, spec);
}

absl::Status ExpandJobPaths(v1::JobSpec& spec) {
  RETURN_IF_ERROR(ExpandPaths("", spec));
  if (spec.train().verifier().command().empty()) return absl::OkStatus();
  return ExpandPath("train.verifier.command",
                    *spec.mutable_train()->mutable_verifier()->mutable_command(0));
}

std::string JobSpecToYaml(const v1::JobSpec& spec) { return MessageToYaml(spec); }

std::string JobFileReference() { return ReferenceOf(*v1::JobSpec::descriptor()); }

}  // namespace espalier
