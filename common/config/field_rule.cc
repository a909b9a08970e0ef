#include "common/config/field_rule.h"

#include <algorithm>
#include <cmath>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/base/utf8.h"
#include "common/config/yaml_tree.h"

namespace espalier {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::EnumValueDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

namespace {

// "TASK_" of an enum whose value 0 is TASK_UNSPECIFIED.
std::string EnumPrefix(const EnumDescriptor& type) {
  const std::string zero(type.value(0)->name());
  return std::string(absl::StripSuffix(zero, "UNSPECIFIED"));
}

std::string RangeText(const v1::FieldRule& rule) {
  if (rule.has_min() && rule.has_max()) {
    return absl::StrCat(" from ", NumberText(rule.min()), " to ", NumberText(rule.max()));
  }
  if (rule.has_min()) return absl::StrCat(" of at least ", NumberText(rule.min()));
  if (rule.has_max()) return absl::StrCat(" of at most ", NumberText(rule.max()));
  return "";
}

std::string StringRuleText(const v1::FieldRule& rule) {
  if (rule.allowed_size() > 0) return absl::StrCat("one of: ", absl::StrJoin(rule.allowed(), ", "));
  if (rule.path()) return "a path";
  if (rule.has_max()) {
    return absl::StrCat("text of ", NumberText(rule.min()), " to ", NumberText(rule.max()),
                        " characters");
  }
  return "text";
}

std::string ElementText(const FieldDescriptor& field) {
  const v1::FieldRule& rule = RuleOf(field);
  const std::string unit = rule.unit().empty() ? "" : absl::StrCat(" ", rule.unit());
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return "true or false";
    case FieldDescriptor::CPPTYPE_ENUM:
      return absl::StrCat("one of: ", absl::StrJoin(EnumTexts(*field.enum_type()), ", "));
    case FieldDescriptor::CPPTYPE_STRING:
      return StringRuleText(rule);
    case FieldDescriptor::CPPTYPE_DOUBLE:
    case FieldDescriptor::CPPTYPE_FLOAT:
      return absl::StrCat("a number", RangeText(rule), unit);
    case FieldDescriptor::CPPTYPE_UINT64:
    case FieldDescriptor::CPPTYPE_UINT32:
      return absl::StrCat("a whole number", rule.has_min() ? RangeText(rule) : " of at least 0",
                          unit);
    case FieldDescriptor::CPPTYPE_INT32:
    case FieldDescriptor::CPPTYPE_INT64:
      return absl::StrCat("a whole number", RangeText(rule), unit);
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return "a section";
  }
  return "";
}

std::optional<std::string> CheckNumber(double value, const FieldDescriptor& field) {
  const v1::FieldRule& rule = RuleOf(field);
  const bool low = rule.has_min() && !(value >= rule.min());
  const bool high = rule.has_max() && !(value <= rule.max());
  if (!low && !high && std::isfinite(value)) return std::nullopt;
  return absl::StrCat("is ", NumberText(value), "; allowed: ", ElementText(field));
}

std::optional<std::string> CheckString(const std::string& value, const FieldDescriptor& field) {
  const v1::FieldRule& rule = RuleOf(field);
  const auto refuse = [&](absl::string_view why) {
    return absl::StrCat("is ", Quoted(value), why, "; allowed: ", ElementText(field));
  };
  if (ValidUtf8Prefix(value) != value.size()) return refuse(" (not UTF-8)");
  if (absl::c_any_of(value, [](char c) { return absl::ascii_iscntrl(c); })) {
    return refuse(" (with a control character)");
  }
  if (rule.allowed_size() > 0 && !absl::c_linear_search(rule.allowed(), value)) return refuse("");
  if (rule.path() && value.empty()) return refuse("");
  const auto size = static_cast<double>(value.size());
  if (rule.has_min() && size < rule.min()) return refuse(" (too short)");
  if (rule.has_max() && size > rule.max()) return refuse(" (too long)");
  return std::nullopt;
}

std::optional<std::string> CheckEnum(int number, const FieldDescriptor& field) {
  if (number != 0 && field.enum_type()->FindValueByNumber(number) != nullptr) return std::nullopt;
  return absl::StrCat("is ", number, "; allowed: ", ElementText(field));
}

// The value of a field, or element `i` of a repeated one.
std::optional<std::string> CheckElement(const Message& message, const FieldDescriptor& field,
                                        int i) {
  const Reflection& r = *message.GetReflection();
  const bool many = field.is_repeated();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return CheckNumber(
          many ? r.GetRepeatedDouble(message, &field, i) : r.GetDouble(message, &field), field);
    case FieldDescriptor::CPPTYPE_INT32:
      return CheckNumber(
          many ? r.GetRepeatedInt32(message, &field, i) : r.GetInt32(message, &field), field);
    case FieldDescriptor::CPPTYPE_INT64:
      return CheckNumber(static_cast<double>(many ? r.GetRepeatedInt64(message, &field, i)
                                                  : r.GetInt64(message, &field)),
                         field);
    case FieldDescriptor::CPPTYPE_UINT64:
      return CheckNumber(static_cast<double>(many ? r.GetRepeatedUInt64(message, &field, i)
                                                  : r.GetUInt64(message, &field)),
                         field);
    case FieldDescriptor::CPPTYPE_STRING:
      return CheckString(
          many ? r.GetRepeatedString(message, &field, i) : r.GetString(message, &field), field);
    case FieldDescriptor::CPPTYPE_ENUM:
      return CheckEnum(
          many ? r.GetRepeatedEnumValue(message, &field, i) : r.GetEnumValue(message, &field),
          field);
    case FieldDescriptor::CPPTYPE_BOOL:
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return std::nullopt;
    case FieldDescriptor::CPPTYPE_FLOAT:
    case FieldDescriptor::CPPTYPE_UINT32:
      break;
  }
  return "has a type that configuration files do not use";
}

}  // namespace

const v1::FieldRule& RuleOf(const FieldDescriptor& field) {
  return field.options().GetExtension(v1::rule);
}

bool IsSection(const FieldDescriptor& field) {
  return field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
}

bool IsFilledSection(const FieldDescriptor& field) {
  return IsSection(field) && !field.is_repeated() && !RuleOf(field).optional_section();
}

std::string NameOf(const FieldDescriptor& field) { return std::string(field.name()); }

std::string PathOf(absl::string_view section, absl::string_view name) {
  return section.empty() ? std::string(name) : absl::StrCat(section, ".", name);
}

std::vector<std::string> KeysOf(const Descriptor& section) {
  std::vector<std::string> keys;
  for (int i = 0; i < section.field_count(); ++i) keys.push_back(NameOf(*section.field(i)));
  return keys;
}

std::string EnumText(const EnumValueDescriptor& value) {
  const std::string name(value.name());
  return absl::AsciiStrToLower(absl::StripPrefix(name, EnumPrefix(*value.type())));
}

std::vector<std::string> EnumTexts(const EnumDescriptor& type) {
  std::vector<std::string> texts;
  for (int i = 1; i < type.value_count(); ++i) texts.push_back(EnumText(*type.value(i)));
  return texts;
}

std::optional<int> EnumNumber(const EnumDescriptor& type, absl::string_view text) {
  for (int i = 1; i < type.value_count(); ++i) {
    if (EnumText(*type.value(i)) == text) return type.value(i)->number();
  }
  return std::nullopt;
}

std::string NumberText(double value) {
  const bool whole = std::isfinite(value) && value == std::trunc(value) && std::abs(value) < 1e18;
  if (!whole) {
    for (int digits = 6; digits <= 17; ++digits) {
      const std::string text = absl::StrFormat("%.*g", digits, value);
      double read = 0;
      if (absl::SimpleAtod(text, &read) && read == value) return text;
    }
    return absl::StrCat(value);
  }
  std::string text = absl::StrCat(static_cast<int64_t>(value));
  const size_t digits = text.find_last_not_of('0') + 1;
  const size_t zeros = text.size() - digits;
  return zeros < 6 ? text : absl::StrCat(text.substr(0, digits), "e", zeros);
}

std::string AllowedText(const FieldDescriptor& field) {
  const std::string element = ElementText(field);
  return field.is_repeated() ? absl::StrCat("a list; each entry ", element) : element;
}

std::optional<std::string> CheckField(const Message& message, const FieldDescriptor& field) {
  if (!field.is_repeated()) return CheckElement(message, field, 0);
  const int size = message.GetReflection()->FieldSize(message, &field);
  for (int i = 0; i < size; ++i) {
    if (std::optional<std::string> why = CheckElement(message, field, i)) {
      return absl::StrCat("entry ", i, " ", *why);
    }
  }
  return std::nullopt;
}

}  // namespace espalier
