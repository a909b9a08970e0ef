#include "common/config/yaml_writer.h"

#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/config/field_rule.h"

namespace espalier {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

namespace {

// The value of a field, or element `i` of a repeated one.
std::string ValueText(const Message& message, const FieldDescriptor& field, int i) {
  const Reflection& r = *message.GetReflection();
  const bool many = field.is_repeated();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return absl::StrCat(many ? r.GetRepeatedInt32(message, &field, i)
                               : r.GetInt32(message, &field));
    case FieldDescriptor::CPPTYPE_INT64:
      return absl::StrCat(many ? r.GetRepeatedInt64(message, &field, i)
                               : r.GetInt64(message, &field));
    case FieldDescriptor::CPPTYPE_UINT64:
      return absl::StrCat(many ? r.GetRepeatedUInt64(message, &field, i)
                               : r.GetUInt64(message, &field));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return NumberText(many ? r.GetRepeatedDouble(message, &field, i)
                             : r.GetDouble(message, &field));
    case FieldDescriptor::CPPTYPE_BOOL:
      return (many ? r.GetRepeatedBool(message, &field, i) : r.GetBool(message, &field)) ? "true"
                                                                                         : "false";
    case FieldDescriptor::CPPTYPE_ENUM:
      return EnumText(many ? *r.GetRepeatedEnum(message, &field, i) : *r.GetEnum(message, &field));
    case FieldDescriptor::CPPTYPE_STRING:
      return YamlText(many ? r.GetRepeatedString(message, &field, i)
                           : r.GetString(message, &field));
    case FieldDescriptor::CPPTYPE_FLOAT:
    case FieldDescriptor::CPPTYPE_UINT32:
    case FieldDescriptor::CPPTYPE_MESSAGE:
      break;
  }
  return "";
}

void Write(const Message& message, const std::string& indent, std::string& out);

// The lines of one list item: the first begins with "- ".
void WriteItem(const Message& item, const std::string& indent, std::string& out) {
  std::string text;
  Write(item, indent + "  ", text);
  if (text.empty()) text = indent + "  {}\n";
  text[indent.size()] = '-';
  out += text;
}

void WriteSection(const Message& message, const FieldDescriptor& field, const std::string& indent,
                  std::string& out) {
  const Reflection& reflection = *message.GetReflection();
  absl::StrAppend(&out, indent, NameOf(field), ":\n");
  if (!field.is_repeated()) {
    Write(reflection.GetMessage(message, &field), indent + "  ", out);
    return;
  }
  for (int i = 0; i < reflection.FieldSize(message, &field); ++i) {
    WriteItem(reflection.GetRepeatedMessage(message, &field, i), indent + "  ", out);
  }
}

void Write(const Message& message, const std::string& indent, std::string& out) {
  std::vector<const FieldDescriptor*> fields;
  message.GetReflection()->ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (IsSection(*field)) {
      WriteSection(message, *field, indent, out);
      continue;
    }
    std::vector<std::string> values;
    const int size = field->is_repeated() ? message.GetReflection()->FieldSize(message, field) : 1;
    for (int i = 0; i < size; ++i) values.push_back(ValueText(message, *field, i));
    const std::string text = absl::StrJoin(values, ", ");
    absl::StrAppend(&out, indent, NameOf(*field), ": ",
                    field->is_repeated() ? absl::StrCat("[", text, "]") : text, "\n");
  }
}

}  // namespace

std::string MessageToYaml(const Message& message) {
  std::string out;
  Write(message, "", out);
  return out;
}

std::string YamlText(absl::string_view text) {
  const bool plain =
      !text.empty() && (absl::ascii_isalpha(text[0]) || text[0] == '/') &&
      absl::c_all_of(text, [](char c) {
        return absl::ascii_isalnum(c) || c == '/' || c == '.' || c == '_' || c == '-';
      });
  const std::string lower = absl::AsciiStrToLower(text);
  const bool word = lower == "null" || lower == "true" || lower == "false" || lower == "yes" ||
                    lower == "no" || lower == "on" || lower == "off";
  if (plain && !word) return std::string(text);
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      absl::StrAppend(&quoted, "\\", absl::string_view(&c, 1));
    } else if (absl::ascii_iscntrl(c)) {
      absl::StrAppendFormat(&quoted, "\\x%02x", static_cast<unsigned char>(c));
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

}  // namespace espalier
