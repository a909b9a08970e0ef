#include "common/config/overrides.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"

namespace espalier {
namespace {

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

}  // namespace

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

}  // namespace espalier
