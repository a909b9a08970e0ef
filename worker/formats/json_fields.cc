#include "worker/formats/json_fields.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/json_shape.h"
#include "common/base/status_macros.h"

namespace espalier {
namespace {

using nlohmann::json;

constexpr int64_t kIntegerMax = int64_t{1} << 53;  // what every JSON reader represents exactly

std::string Shown(const json& value) {
  return value.dump(-1, ' ', true, json::error_handler_t::replace).substr(0, 60);
}

absl::StatusOr<const json*> Field(const json& object, const std::string& name,
                                  bool (*is_right)(const json&), absl::string_view wanted) {
  const auto it = object.find(name);
  if (it == object.end())
    return absl::InvalidArgumentError(absl::StrCat("'", name, "' is missing"));
  if (is_right(*it)) return &*it;
  return absl::InvalidArgumentError(
      absl::StrCat("'", name, "' must be ", wanted, ", got ", Shown(*it)));
}

}  // namespace

absl::StatusOr<json> ParseJsonObject(absl::string_view text) {
  RETURN_IF_ERROR(CheckDepth(text));  // copies and dump() go down as deep
  json value = json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (value.is_discarded()) return absl::InvalidArgumentError("it is not valid JSON");
  if (!value.is_object()) return absl::InvalidArgumentError("it is not a JSON object");
  return value;
}

absl::StatusOr<int64_t> IntegerField(const json& object, const std::string& name) {
  const auto is_right = [](const json& value) {
    return value.is_number_unsigned() &&
           value.get<uint64_t>() <= static_cast<uint64_t>(kIntegerMax);
  };
  const auto field = Field(object, name, is_right, "an integer from 0 to 2^53");
  if (!field.ok()) return field.status();
  return (*field)->get<int64_t>();
}

absl::StatusOr<std::string> StringField(const json& object, const std::string& name) {
  const auto field = Field(
      object, name, [](const json& value) { return value.is_string(); }, "a text");
  if (!field.ok()) return field.status();
  return (*field)->get<std::string>();
}

absl::StatusOr<const json*> ArrayField(const json& object, const std::string& name) {
  return Field(
      object, name, [](const json& value) { return value.is_array(); }, "a list");
}

absl::StatusOr<const json*> ObjectField(const json& object, const std::string& name) {
  return Field(
      object, name, [](const json& value) { return value.is_object(); }, "an object");
}

const json* JsonKeys::Find(const char* key) const {
  const auto it = object_.find(key);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

int64_t JsonKeys::Integer(const char* key, int64_t absent) {
  const json* value = Find(key);
  if (value == nullptr) return absent;
  if (!value->is_number_integer()) return Wrong(key, "a whole number"), absent;
  return value->get<int64_t>();
}

double JsonKeys::Real(const char* key, double absent) {
  const json* value = Find(key);
  if (value == nullptr) return absent;
  if (!value->is_number()) return Wrong(key, "a number"), absent;
  return value->get<double>();
}

bool JsonKeys::Flag(const char* key, bool absent) {
  const json* value = Find(key);
  if (value == nullptr) return absent;
  if (!value->is_boolean()) return Wrong(key, "true or false"), absent;
  return value->get<bool>();
}

std::string JsonKeys::Text(const char* key, absl::string_view absent) {
  const json* value = Find(key);
  if (value == nullptr) return std::string(absent);
  if (!value->is_string()) return Wrong(key, "a string"), std::string(absent);
  return value->get<std::string>();
}

void JsonKeys::Require(const char* key) {
  if (Find(key) == nullptr) Fail(absl::StrCat(file_, " has no ", prefix_, key));
}

void JsonKeys::Wrong(const char* key, absl::string_view allowed) {
  Fail(absl::StrCat(file_, ": ", prefix_, key, " is ", Shown(object_[key]), "; it must be ",
                    allowed));
}

void JsonKeys::Fail(std::string message) {
  if (status_.ok()) status_ = absl::InvalidArgumentError(std::move(message));
}

absl::Status CheckPlainFileName(absl::string_view name) {
  const bool plain = !name.empty() && name != "." && name != ".." && name.size() <= 255 &&
                     name.find('/') == name.npos && name.find('\0') == name.npos;
  if (plain) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("file name '", name.substr(0, 60), "' is not a plain name inside the folder"));
}

absl::Status CheckSha256Text(absl::string_view text) {
  const bool hex = std::all_of(text.begin(), text.end(), [](char c) {
    return ('0' <= c && c <= '9') || ('a' <= c && c <= 'f');
  });
  if (hex && text.size() == 64) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("'sha256' must be 64 hex digits, got '", text.substr(0, 70), "'"));
}

}  // namespace espalier
