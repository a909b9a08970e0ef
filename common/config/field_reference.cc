
#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/config/field_rule.h"

namespace espalier {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;

struct Row {
  std::string path;
  std::string allowed;
  std::string note;
};

std::string NoteOf(const FieldDescriptor& field) {
  const v1::FieldRule& rule = RuleOf(field);
  if (rule.required()) return "required";
  if (rule.has_default_value()) return absl::StrCat("default ", rule.default_value());
  return "optional";
}

void Collect(const Descriptor& type, const std::string& path, std::vector<Row>& rows) {
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    const std::string name =
        absl::StrCat(NameOf(field), IsSection(field) && field.is_repeated() ? "[]" : "");
    const std::string field_path = PathOf(path, name);
    if (!IsSection(field)) {
      rows.push_back({field_path, AllowedText(field), NoteOf(field)});
      continue;
    }
    if (!IsFilledSection(field) && !field.is_repeated()) {
      rows.push_back({field_path, "a section", "optional"});
    }
    Collect(*field.message_type(), field_path, rows);
  }
}

}  // namespace

std::string ReferenceOf(const Descriptor& type) {
  std::vector<Row> rows;
  Collect(type, "", rows);
  size_t path_width = 0;
  size_t allowed_width = 0;
  for (const Row& row : rows) {
    path_width = std::max(path_width, row.path.size());
    allowed_width = std::max(allowed_width, row.allowed.size());
  }
  std::string text;
  for (const Row& row : rows) {
    absl::StrAppendFormat(&text, "%-*s  %-*s  %s\n", static_cast<int>(path_width), row.path,
                          static_cast<int>(allowed_width), row.allowed, row.note);
  }
  return text;
}

}  // namespace espalier
