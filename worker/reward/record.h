// Records of prompts, which are JSON, and the files of prompts that carry them: JSONL of
//   {"prompt": "...", "record": {...}}
// Used by worker/reward. Pure but for the files: any thread.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace espalier {

// INVALID_ARGUMENT, with the record: it is no JSON object, or one of a shape that nobody writes
// (common/base/json_shape.h).
absl::StatusOr<nlohmann::ordered_json> ParseRecord(absl::string_view json);
// The status with the record, cut to 200 bytes, before its message.
absl::Status RecordError(const absl::Status& status, absl::string_view json);

// On one line; what is not UTF-8 becomes U+FFFD.
std::string DumpJson(const nlohmann::ordered_json& json);

// A prompt that completions are sampled for, and what its verifier is told of it.
struct RewardPrompt {
  std::string prompt;
  std::string record;  // JSON
};
// The prompts of a file, in its order; further members of a row are ignored, and records are not
// looked into: their verifier does that. INVALID_ARGUMENT, with file and line: a row without both;
// a line that is no JSON object; a file without a row. NOT_FOUND: there is no file.
absl::StatusOr<std::vector<RewardPrompt>> LoadRewardPrompts(const std::string& path);

// The row of a prompt, with its line break.
std::string RewardPromptRow(const RewardPrompt& prompt);

}  // namespace espalier
