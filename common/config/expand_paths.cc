#include "common/config/expand_paths.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/home.h"
#include "common/base/status_macros.h"
#include "common/config/field_rule.h"

namespace espalier {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

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
      const auto expanded = ExpandHome(reflection.GetString(message, field));
      if (!expanded.ok()) {
        return absl::Status(expanded.status().code(),
                            absl::StrCat(field_path, ": ", expanded.status().message()));
      }
      reflection.SetString(&message, field, *expanded);
    }
  }
  return absl::OkStatus();
}

}  // namespace espalier
