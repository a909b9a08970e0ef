// Reads the fields of a JSON object with errors that name the field. Used by worker/data and
// worker/state. Plain functions: any thread.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace espalier {

// The object that `text` holds. INVALID_ARGUMENT for anything else; never throws.
absl::StatusOr<nlohmann::json> ParseJsonObject(absl::string_view text);

// INVALID_ARGUMENT "'tokens' is missing", "'tokens' must be an integer from 0 to 2^53, got -1".
absl::StatusOr<int64_t> IntegerField(const nlohmann::json& object, const std::string& name);
absl::StatusOr<std::string> StringField(const nlohmann::json& object, const std::string& name);
absl::StatusOr<const nlohmann::json*> ArrayField(const nlohmann::json& object,
                                                 const std::string& name);
absl::StatusOr<const nlohmann::json*> ObjectField(const nlohmann::json& object,
                                                  const std::string& name);

// A plain file name: not empty, not "." or "..", no '/' or NUL. INVALID_ARGUMENT otherwise.
absl::Status CheckPlainFileName(absl::string_view name);
// 64 lower-case hex digits. INVALID_ARGUMENT otherwise.
absl::Status CheckSha256Text(absl::string_view text);

}  // namespace espalier
