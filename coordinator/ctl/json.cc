#include "coordinator/ctl/json.h"

#include <google/protobuf/descriptor.h>

#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace espalier::ctl {
namespace {

using google::protobuf::EnumValueDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using Json = nlohmann::ordered_json;

// "JobState" -> "JOB_STATE_".
std::string EnumPrefix(absl::string_view type) {
  std::string prefix;
  for (char c : type) {
    if (absl::ascii_isupper(static_cast<unsigned char>(c)) && !prefix.empty()) prefix += '_';
    prefix += absl::ascii_toupper(static_cast<unsigned char>(c));
  }
  return prefix + "_";
}

Json EnumJson(const EnumValueDescriptor* value) {
  const std::string type(value->type()->name());
  const std::string prefix = EnumPrefix(type);
  const std::string name(absl::StripPrefix(absl::string_view(value->name()), prefix));
  const bool of_spec = absl::EndsWith(value->file()->name(), "/job.proto");
  return of_spec ? absl::AsciiStrToLower(name) : name;
}

Json NumberJson(double number) { return std::isfinite(number) ? Json(number) : Json(nullptr); }

// A float as the shortest decimal that a float needs, not as the double it widens to.
Json FloatJson(float number) {
  return NumberJson(std::isfinite(number) ? std::stod(absl::StrCat(number)) : number);
}

Json OneValue(const Message& message, const FieldDescriptor* field) {
  const Reflection& r = *message.GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return r.GetInt32(message, field);
    case FieldDescriptor::CPPTYPE_INT64:
      return r.GetInt64(message, field);
    case FieldDescriptor::CPPTYPE_UINT32:
      return r.GetUInt32(message, field);
    case FieldDescriptor::CPPTYPE_UINT64:
      return r.GetUInt64(message, field);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return NumberJson(r.GetDouble(message, field));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return FloatJson(r.GetFloat(message, field));
    case FieldDescriptor::CPPTYPE_BOOL:
      return r.GetBool(message, field);
    case FieldDescriptor::CPPTYPE_ENUM:
      return EnumJson(r.GetEnum(message, field));
    case FieldDescriptor::CPPTYPE_STRING:
      return r.GetString(message, field);
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return ToJson(r.GetMessage(message, field));
  }
  return nullptr;
}

Json Element(const Message& message, const FieldDescriptor* field, int i) {
  const Reflection& r = *message.GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return r.GetRepeatedInt32(message, field, i);
    case FieldDescriptor::CPPTYPE_INT64:
      return r.GetRepeatedInt64(message, field, i);
    case FieldDescriptor::CPPTYPE_UINT32:
      return r.GetRepeatedUInt32(message, field, i);
    case FieldDescriptor::CPPTYPE_UINT64:
      return r.GetRepeatedUInt64(message, field, i);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return NumberJson(r.GetRepeatedDouble(message, field, i));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return FloatJson(r.GetRepeatedFloat(message, field, i));
    case FieldDescriptor::CPPTYPE_BOOL:
      return r.GetRepeatedBool(message, field, i);
    case FieldDescriptor::CPPTYPE_ENUM:
      return EnumJson(r.GetRepeatedEnum(message, field, i));
    case FieldDescriptor::CPPTYPE_STRING:
      return r.GetRepeatedString(message, field, i);
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return ToJson(r.GetRepeatedMessage(message, field, i));
  }
  return nullptr;
}

}  // namespace

Json ToJson(const Message& message) {
  Json object = Json::object();
  const google::protobuf::Descriptor* type = message.GetDescriptor();
  const Reflection& reflection = *message.GetReflection();
  for (int i = 0; i < type->field_count(); ++i) {
    const FieldDescriptor* field = type->field(i);
    const std::string key(field->name());
    if (field->is_repeated()) {
      Json list = Json::array();
      for (int k = 0; k < reflection.FieldSize(message, field); ++k) {
        list.push_back(Element(message, field, k));
      }
      object[key] = std::move(list);
    } else if (!field->has_presence() || reflection.HasField(message, field)) {
      object[key] = OneValue(message, field);
    }
  }
  return object;
}

std::string JsonText(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string JsonLine(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace espalier::ctl
