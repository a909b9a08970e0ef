#include "common/config/yaml_reader.h"

#include <google/protobuf/text_format.h>

#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/nearest.h"
#include "common/config/field_rule.h"

namespace espalier {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

namespace {

std::string PlaceOf(const YamlNode& node) { return Where(*node.source, node.line); }

bool IsSet(const Message& message, const FieldDescriptor& field) {
  const auto& reflection = *message.GetReflection();
  return field.is_repeated() ? reflection.FieldSize(message, &field) > 0
                             : reflection.HasField(message, &field);
}

std::vector<std::string> TextsOf(const Message& message, const FieldDescriptor& field) {
  const bool one = !field.is_repeated();
  std::vector<std::string> texts(
      static_cast<size_t>(one ? 1 : message.GetReflection()->FieldSize(message, &field)));
  for (size_t i = 0; i < texts.size(); ++i) {
    google::protobuf::TextFormat::PrintFieldValueToString(
        message, &field, one ? -1 : static_cast<int>(i), &texts[i]);
  }
  return texts;
}

// Where else in the schema a key of this name stands ("train.schedule.learning_rate").
std::optional<std::string> FindElsewhere(const Descriptor& section, const std::string& path,
                                         const std::string& key) {
  if (section.FindFieldByName(key) != nullptr) return PathOf(path, key);
  for (int i = 0; i < section.field_count(); ++i) {
    const FieldDescriptor& field = *section.field(i);
    if (!IsSection(field)) continue;
    const std::string name = absl::StrCat(NameOf(field), field.is_repeated() ? "[]" : "");
    if (auto found = FindElsewhere(*field.message_type(), PathOf(path, name), key)) return found;
  }
  return std::nullopt;
}

}  // namespace

void YamlReader::Read(const YamlNode& node, const std::string& path, Message& message) {
  if (root_ == nullptr) {
    root_ = message.GetDescriptor();
    file_ = node.source.get();
  }
  if (node.kind == YamlNode::Kind::kNull) return;
  if (node.kind != YamlNode::Kind::kMap) {
    problems_.Add(PlaceOf(node),
                  absl::StrCat(path.empty() ? "the file" : path, " is ", Describe(node),
                               "; it must hold 'key: value' lines (",
                               absl::StrJoin(KeysOf(*message.GetDescriptor()), ", "), ")"));
    return;
  }
  std::map<std::string, int> lines;
  for (const YamlEntry& entry : node.entries) {
    const FieldDescriptor* field = message.GetDescriptor()->FindFieldByName(entry.key);
    if (field == nullptr) {
      ReportUnknown(entry, path, message);
      continue;
    }
    const auto [first, is_new] = lines.emplace(entry.key, entry.line);
    if (!is_new) {
      problems_.Add(Where(*node.source, entry.line),
                    absl::StrCat(PathOf(path, entry.key), " is given twice, first in line ",
                                 first->second, "; keep one"));
      continue;
    }
    ReadKey(entry, PathOf(path, entry.key), *field, message);
  }
}

void YamlReader::ReadKey(const YamlEntry& entry, const std::string& path,
                         const FieldDescriptor& field, Message& message) {
  if (!IsSection(field)) {
    ReadValues(entry.value, path, field, message);
  } else if (field.is_repeated()) {
    ReadSections(entry.value, path, field, message);
  } else {
    Read(entry.value, path, *message.GetReflection()->MutableMessage(&message, &field));
  }
}

void YamlReader::ReadSections(const YamlNode& node, const std::string& path,
                              const FieldDescriptor& field, Message& message) {
  if (node.kind == YamlNode::Kind::kNull) return;
  if (node.kind != YamlNode::Kind::kSequence) {
    problems_.Add(PlaceOf(node), absl::StrCat(path, " is ", Describe(node),
                                              "; it must be a list of sections ('- key: value')"));
    return;
  }
  for (size_t i = 0; i < node.items.size(); ++i) {
    Read(node.items[i], absl::StrCat(path, "[", i, "]"),
         *message.GetReflection()->AddMessage(&message, &field));
  }
}

void YamlReader::ReadValues(const YamlNode& node, const std::string& path,
                            const FieldDescriptor& field, Message& message) {
  std::vector<const YamlNode*> values{&node};
  if (field.is_repeated() && node.kind == YamlNode::Kind::kSequence) {
    values.clear();
    for (const YamlNode& item : node.items) values.push_back(&item);
  }
  for (const YamlNode* value : values) {
    std::optional<std::string> why = SetScalar(*value, field, message);
    if (!why) continue;
    problems_.Add(PlaceOf(*value), absl::StrCat(path, " ", *why));
    return;
  }
  if (const auto why = CheckField(message, field)) {
    std::string text = absl::StrCat(path, " ", *why);
    const auto& allowed = RuleOf(field).allowed();
    const auto near = Nearest(node.text, {allowed.begin(), allowed.end()});
    if (near) absl::StrAppend(&text, "; did you mean '", *near, "'?");
    problems_.Add(PlaceOf(node), text);
  }
}

void YamlReader::ReportUnknown(const YamlEntry& entry, const std::string& path,
                               const Message& message) {
  const std::vector<std::string> keys = KeysOf(*message.GetDescriptor());
  std::string text = absl::StrCat("unknown key ", Quoted(PathOf(path, entry.key)));
  const std::optional<std::string> elsewhere = FindElsewhere(*root_, "", entry.key);
  const std::optional<std::string> near = Nearest(entry.key, keys);
  if (elsewhere || near) {
    const std::string meant = elsewhere ? *elsewhere : PathOf(path, *near);
    absl::StrAppend(&text, "; did you mean '", meant, "'? Allowed here: ");
  } else {
    absl::StrAppend(&text, "; allowed here: ");
  }
  absl::StrAppend(&text, absl::StrJoin(keys, ", "));
  problems_.Add(Where(*entry.value.source, entry.line), text);
}

void YamlReader::FillDefaults(const YamlNode* node, const std::string& path, Message& message) {
  const Descriptor& type = *message.GetDescriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    const std::string field_path = PathOf(path, NameOf(field));
    if (IsSection(field)) {
      FillSections(node, field_path, field, message);
    } else {
      FillValue(node, field_path, field, message);
    }
  }
}

void YamlReader::FillValue(const YamlNode* node, const std::string& path,
                           const FieldDescriptor& field, Message& message) {
  const bool given = node != nullptr && node->Find(NameOf(field)) != nullptr;
  const v1::FieldRule& rule = RuleOf(field);
  if (given || IsSet(message, field)) return;  // a value that was refused has been reported
  if (rule.required()) {
    problems_.Add(node != nullptr    ? PlaceOf(*node)
                  : file_ == nullptr ? ""
                                     : file_->name,
                  absl::StrCat(path, " is missing; give ", AllowedText(field)));
  }
  if (!rule.has_default_value()) return;
  auto source = std::make_shared<YamlSource>(YamlSource{.name = "default of " + path});
  const absl::StatusOr<YamlNode> value = ParseYaml(rule.default_value(), std::move(source));
  ESPALIER_CHECK(value.ok(), "a default in proto/ is not valid YAML");
  Problems wrong;
  YamlReader(wrong).ReadValues(*value, path, field, message);
  ESPALIER_CHECK(wrong.empty(), "a default in proto/ breaks its own rule");
}

void YamlReader::FillSections(const YamlNode* node, const std::string& path,
                              const FieldDescriptor& field, Message& message) {
  const auto& reflection = *message.GetReflection();
  const YamlNode* inner = node == nullptr ? nullptr : node->Find(NameOf(field));
  if (!field.is_repeated()) {
    if (!IsFilledSection(field) && !reflection.HasField(message, &field)) return;
    FillDefaults(inner, path, *reflection.MutableMessage(&message, &field));
    return;
  }
  for (int i = 0; i < reflection.FieldSize(message, &field); ++i) {
    const bool has_item = inner != nullptr && i < static_cast<int>(inner->items.size());
    FillDefaults(has_item ? &inner->items[static_cast<size_t>(i)] : nullptr,
                 absl::StrCat(path, "[", i, "]"),
                 *reflection.MutableRepeatedMessage(&message, &field, i));
  }
}

void FillDefaultValues(Message& message) {
  Problems missing;
  YamlReader(missing).FillDefaults(nullptr, "", message);
}

void ClearDefaultValues(Message& message) {
  const auto& reflection = *message.GetReflection();
  const std::unique_ptr<Message> defaults(message.New());
  FillDefaultValues(*defaults);
  std::vector<const FieldDescriptor*> given;
  reflection.ListFields(message, &given);
  for (const FieldDescriptor* field : given) {
    if (IsSection(*field)) {
      for (int i = 0; field->is_repeated() && i < reflection.FieldSize(message, field); ++i) {
        ClearDefaultValues(*reflection.MutableRepeatedMessage(&message, field, i));
      }
      if (field->is_repeated()) continue;
      ClearDefaultValues(*reflection.MutableMessage(&message, field));
      const bool is_empty = reflection.GetMessage(message, field).ByteSizeLong() == 0;
      if (is_empty && IsFilledSection(*field)) reflection.ClearField(&message, field);
    } else if (IsSet(*defaults, *field) && TextsOf(message, *field) == TextsOf(*defaults, *field)) {
      reflection.ClearField(&message, field);
    }
  }
}

}  // namespace espalier
