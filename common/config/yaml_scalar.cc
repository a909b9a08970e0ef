#include <cmath>
#include <cstdint>
#include <filesystem>
#include <limits>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/nearest.h"
#include "common/config/field_rule.h"
#include "common/config/yaml_reader.h"

namespace espalier {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

namespace {

// Decimal digits with an optional sign; a leading zero could be meant as octal and is refused.
bool IsWholeNumber(absl::string_view text) {
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) text.remove_prefix(1);
  if (text.empty() || (text.size() > 1 && text[0] == '0')) return false;
  return text.find_first_not_of("0123456789") == absl::string_view::npos;
}

// "48GiB" -> "51539607552"; other texts stay.
std::string ExpandSize(absl::string_view text) {
  struct Suffix {
    absl::string_view name;
    int64_t factor;
  };
  static constexpr Suffix kSuffixes[] = {{"KiB", int64_t{1} << 10},
                                         {"MiB", int64_t{1} << 20},
                                         {"GiB", int64_t{1} << 30},
                                         {"TiB", int64_t{1} << 40},
                                         {"kB", 1000},
                                         {"MB", 1000000},
                                         {"GB", 1000000000},
                                         {"TB", 1000000000000}};
  for (const Suffix& suffix : kSuffixes) {
    if (!absl::EndsWith(text, suffix.name)) continue;
    const absl::string_view digits =
        absl::StripAsciiWhitespace(text.substr(0, text.size() - suffix.name.size()));
    int64_t count = 0;
    if (!IsWholeNumber(digits) || !absl::SimpleAtoi(digits, &count)) break;
    if (count < 0 || count > std::numeric_limits<int64_t>::max() / suffix.factor) break;
    return absl::StrCat(count * suffix.factor);
  }
  return std::string(text);
}

template <typename T>
std::optional<T> ReadWhole(const YamlNode& node, const FieldDescriptor& field) {
  if (node.quoted) return std::nullopt;
  const std::string text = RuleOf(field).unit() == "bytes" ? ExpandSize(node.text) : node.text;
  T value = 0;
  if (!IsWholeNumber(text) || !absl::SimpleAtoi(text, &value)) return std::nullopt;
  return value;
}

std::optional<double> ReadDouble(const YamlNode& node) {
  double value = 0;
  const bool letters = absl::c_any_of(
      node.text, [](char c) { return absl::ascii_isalpha(c) && c != 'e' && c != 'E'; });
  if (node.quoted || letters || !absl::SimpleAtod(node.text, &value)) return std::nullopt;
  return std::isfinite(value) ? std::optional<double>(value) : std::nullopt;
}

std::optional<bool> ReadBool(const YamlNode& node) {
  if (node.quoted) return std::nullopt;
  if (node.text == "true" || node.text == "True" || node.text == "TRUE") return true;
  if (node.text == "false" || node.text == "False" || node.text == "FALSE") return false;
  return std::nullopt;
}

std::string ReadText(const YamlNode& node, const FieldDescriptor& field) {
  return RuleOf(field).path() && !node.text.empty() ? ResolvePath(node.text, node.source->folder)
                                                    : node.text;
}

std::string Refuse(const YamlNode& node, const FieldDescriptor& field) {
  std::string text = absl::StrCat("is ", Describe(node), "; allowed: ", AllowedText(field));
  if (node.quoted && field.cpp_type() != FieldDescriptor::CPPTYPE_ENUM) {
    absl::StrAppend(&text, ", without quotes");
  }
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_ENUM) {
    if (const auto near = Nearest(node.text, EnumTexts(*field.enum_type()))) {
      absl::StrAppend(&text, "; did you mean '", *near, "'?");
    }
  }
  return text;
}

// Calls set or add, with the field, for the kind of field it is.
template <typename T>
bool Put(Message& message, const FieldDescriptor& field, const std::optional<T>& value,
         void (Reflection::*set)(Message*, const FieldDescriptor*, T) const,
         void (Reflection::*add)(Message*, const FieldDescriptor*, T) const) {
  if (!value) return false;
  (message.GetReflection()->*(field.is_repeated() ? add : set))(&message, &field, *value);
  return true;
}

bool PutText(Message& message, const FieldDescriptor& field, const std::string& text) {
  const Reflection& reflection = *message.GetReflection();
  if (field.is_repeated()) {
    reflection.AddString(&message, &field, text);
  } else {
    reflection.SetString(&message, &field, text);
  }
  return true;
}

bool Set(const YamlNode& node, const FieldDescriptor& field, Message& message) {
  using R = Reflection;
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return Put(message, field, ReadWhole<int32_t>(node, field), &R::SetInt32, &R::AddInt32);
    case FieldDescriptor::CPPTYPE_INT64:
      return Put(message, field, ReadWhole<int64_t>(node, field), &R::SetInt64, &R::AddInt64);
    case FieldDescriptor::CPPTYPE_UINT64:
      return Put(message, field, ReadWhole<uint64_t>(node, field), &R::SetUInt64, &R::AddUInt64);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return Put(message, field, ReadDouble(node), &R::SetDouble, &R::AddDouble);
    case FieldDescriptor::CPPTYPE_BOOL:
      return Put(message, field, ReadBool(node), &R::SetBool, &R::AddBool);
    case FieldDescriptor::CPPTYPE_ENUM:
      return Put(message, field, EnumNumber(*field.enum_type(), node.text), &R::SetEnumValue,
                 &R::AddEnumValue);
    case FieldDescriptor::CPPTYPE_STRING:
      return PutText(message, field, ReadText(node, field));
    case FieldDescriptor::CPPTYPE_FLOAT:
    case FieldDescriptor::CPPTYPE_UINT32:
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return false;
  }
  return false;
}

}  // namespace

std::optional<std::string> SetScalar(const YamlNode& node, const FieldDescriptor& field,
                                     Message& message) {
  if (node.kind == YamlNode::Kind::kNull) {
    return absl::StrCat("has no value; leave the key out to take the default, or give ",
                        AllowedText(field));
  }
  if (node.kind != YamlNode::Kind::kScalar || !Set(node, field, message)) {
    return Refuse(node, field);
  }
  return std::nullopt;
}

std::string ResolvePath(const std::string& path, const std::string& folder) {
  if (absl::StartsWith(path, "/") || absl::StartsWith(path, "~")) return path;
  return (std::filesystem::path(folder) / path).lexically_normal().string();
}

}  // namespace espalier
