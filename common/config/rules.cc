#include "common/config/rules.h"

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/config/field_rule.h"
#include "google/protobuf/unknown_field_set.h"

namespace espalier {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

namespace {

void CheckSection(const Message& message, const FieldDescriptor& field, const std::string& path,
                  Problems& problems) {
  const Reflection& reflection = *message.GetReflection();
  if (field.is_repeated()) {
    for (int i = 0; i < reflection.FieldSize(message, &field); ++i) {
      CheckRules(reflection.GetRepeatedMessage(message, &field, i), absl::StrCat(path, "[", i, "]"),
                 problems);
    }
  } else if (IsFilledSection(field) || reflection.HasField(message, &field)) {
    CheckRules(reflection.GetMessage(message, &field), path, problems);
  }
}

}  // namespace

void CheckRules(const Message& message, const std::string& path, Problems& problems) {
  const Reflection& reflection = *message.GetReflection();
  if (!reflection.GetUnknownFields(message).empty()) {
    problems.Add("", absl::StrCat(path.empty() ? "the job" : path,
                                  " holds fields that version " ESPALIER_VERSION
                                  " does not know; use programs of one version"));
  }
  const auto& type = *message.GetDescriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    const std::string field_path = PathOf(path, NameOf(field));
    const v1::FieldRule& rule = RuleOf(field);
    if (IsSection(field)) {
      CheckSection(message, field, field_path, problems);
      continue;
    }
    const bool is_set = field.is_repeated() ? reflection.FieldSize(message, &field) > 0
                                            : reflection.HasField(message, &field);
    if (!is_set && (rule.required() || rule.has_default_value())) {
      problems.Add("", absl::StrCat(field_path, " is missing; give ", AllowedText(field)));
    }
    if (!is_set) continue;
    if (const auto why = CheckField(message, field)) {
      problems.Add("", absl::StrCat(field_path, " ", *why));
    }
  }
}

void Problems::Add(absl::string_view where, absl::string_view what) {
  ++count_;
  if (lines_.size() >= kShownMax) return;
  lines_.push_back(where.empty() ? std::string(what) : absl::StrCat(where, ": ", what));
}

absl::Status Problems::ToStatus() const {
  if (empty()) return absl::OkStatus();
  std::string text = absl::StrJoin(lines_, "\n");
  if (count_ > lines_.size()) {
    absl::StrAppend(&text, "\nand ", count_ - lines_.size(), " more problems");
  }
  return absl::InvalidArgumentError(text);
}

bool IsName(absl::string_view name) {
  if (name.empty() || name.size() > kNameLengthMax || !absl::ascii_isalnum(name[0])) return false;
  for (const char c : name) {
    if (!absl::ascii_isalnum(c) && c != '-' && c != '_' && c != '.') return false;
  }
  return true;
}

bool IsJobId(absl::string_view id) {
  const size_t dash = id.rfind('-');
  int64_t number = 0;
  return dash != absl::string_view::npos && IsName(id.substr(0, dash)) &&
         absl::SimpleAtoi(id.substr(dash + 1), &number) && absl::ascii_isdigit(id[dash + 1]);
}

}  // namespace espalier
