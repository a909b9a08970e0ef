#include "worker/data/json_lines.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/json_shape.h"
#include "common/base/status_macros.h"

namespace espalier {
namespace {

constexpr size_t kFirstBytes = size_t{4} << 20;
constexpr size_t kLineBytesMax = size_t{256} << 20;
constexpr size_t kShownKeysBytes = 200;

}  // namespace

absl::StatusOr<bool> JsonLines::Next(nlohmann::ordered_json& value) {
  do {
    position_ = file_.position();
    ASSIGN_OR_RETURN(const bool found, NextLine());
    if (!found) return false;
  } while (absl::StripAsciiWhitespace(line_).empty());
  if (const absl::Status shape = CheckShape(line_); !shape.ok()) return Error(shape);
  value = nlohmann::ordered_json::parse(line_.begin(), line_.end(), nullptr,
                                        /*allow_exceptions=*/false);
  if (value.is_discarded()) {
    return Error(absl::InvalidArgumentError("not valid JSON in UTF-8"));
  }
  if (!value.is_object()) return Error(absl::InvalidArgumentError("not a JSON object"));
  return true;
}

absl::Status JsonLines::Error(const absl::Status& status) const {
  return absl::Status(status.code(),
                      absl::StrCat(file_.path(), ":", line_number_, ": ", status.message()));
}

// Sets line_; false at the end of the file.
absl::StatusOr<bool> JsonLines::NextLine() {
  line_ = {};
  ++line_number_;
  size_t newline = file_.held().find('\n');
  for (size_t size = kFirstBytes; newline == absl::string_view::npos && !file_.ended(); size *= 2) {
    if (size > kLineBytesMax) {
      return Error(absl::ResourceExhaustedError("the line is longer than 256 MiB"));
    }
    RETURN_IF_ERROR(file_.Fill(size));
    newline = file_.held().find('\n');
  }
  if (file_.held().empty()) return false;
  line_ = newline == absl::string_view::npos ? file_.Take(file_.held().size())
                                             : file_.Take(newline + 1);
  return true;
}

absl::StatusOr<std::string> TakeText(nlohmann::ordered_json& object, const std::string& field,
                                     absl::string_view advice) {
  const auto it = object.find(field);
  if (it == object.end()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "no field '", field, "' (the line has: ", KeysOfObject(object), "); ", advice));
  }
  if (!it->is_string()) {
    return absl::InvalidArgumentError(absl::StrCat("field '", field, "' is not a text"));
  }
  return std::move(it->get_ref<std::string&>());
}

std::string KeysOfObject(const nlohmann::ordered_json& object) {
  std::string keys;
  for (const auto& [key, unused] : object.items()) {
    if (keys.size() > kShownKeysBytes) break;
    absl::StrAppend(&keys, keys.empty() ? "" : ", ", "'", key, "'");
  }
  return keys.substr(0, kShownKeysBytes);
}

absl::StatusOr<std::unique_ptr<RowSource>> OpenRows(const InputFile& file) {
  if (file.parquet) {
    return absl::UnimplementedError(absl::StrCat(
        file.path,
        " is Parquet, which is not read as yet; write its rows as JSONL, for instance with pandas: "
        "read_parquet(FILE).to_json('rows.jsonl', orient='records', lines=True)"));
  }
  if (!file.jsonl) {
    return absl::InvalidArgumentError(
        absl::StrCat(file.path,
                     " is not JSONL by its name, and examples come as lines of JSONL; name files "
                     "that end in .jsonl or .ndjson"));
  }
  ASSIGN_OR_RETURN(ForwardFile opened, ForwardFile::Open(file.path));
  return std::make_unique<JsonLines>(std::move(opened));
}

}  // namespace espalier
