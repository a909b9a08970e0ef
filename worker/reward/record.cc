#include "worker/reward/record.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/json_shape.h"
#include "common/base/status_macros.h"
#include "worker/data/json_lines.h"

namespace espalier {
namespace {

using Json = nlohmann::ordered_json;
constexpr size_t kShownBytes = 200;

}  // namespace

absl::StatusOr<Json> ParseRecord(absl::string_view json) {
  if (const absl::Status shape = CheckShape(json); !shape.ok()) return RecordError(shape, json);
  Json object = Json::parse(json.begin(), json.end(), nullptr, /*allow_exceptions=*/false);
  if (object.is_object()) return object;
  return RecordError(absl::InvalidArgumentError("it is no JSON object"), json);
}

absl::Status RecordError(const absl::Status& status, absl::string_view json) {
  return absl::Status(
      status.code(),
      absl::StrCat("the record ", absl::CHexEscape(json.substr(0, kShownBytes)),
                   json.size() > kShownBytes ? "..." : "", " cannot be used: ", status.message()));
}

std::string DumpJson(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

absl::StatusOr<std::vector<RewardPrompt>> LoadRewardPrompts(const std::string& path) {
  ASSIGN_OR_RETURN(ForwardFile file, ForwardFile::Open(path));
  JsonLines rows(std::move(file));
  std::vector<RewardPrompt> prompts;
  Json row;
  for (;;) {
    ASSIGN_OR_RETURN(const bool found, rows.Next(row));
    if (!found) break;
    const auto prompt = row.find("prompt"), record = row.find("record");
    if (prompt == row.end() || !prompt->is_string() || record == row.end() ||
        !record->is_object()) {
      return rows.Error(absl::InvalidArgumentError(
          absl::StrCat("a prompt is {\"prompt\": TEXT, \"record\": OBJECT}, and this row has ",
                       KeysOfObject(row))));
    }
    prompts.push_back(
        {.prompt = std::move(prompt->get_ref<std::string&>()), .record = DumpJson(*record)});
  }
  if (prompts.empty()) return absl::InvalidArgumentError(absl::StrCat(path, " has no prompt"));
  return prompts;
}

std::string RewardPromptRow(const RewardPrompt& prompt) {
  const Json row{{"prompt", prompt.prompt}, {"record", Json::parse(prompt.record)}};
  return DumpJson(row) + "\n";
}

}  // namespace espalier
