// What a client asks for in OpenAI's form, read from the body of a request: POST
// /v1/chat/completions and /v1/completions. Used by openai_server.cc. Any thread.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/generation/sample.h"

namespace espalier {

// A prompt of /v1/completions: text, or its ids.
using CompletionPrompt = std::variant<std::string, std::vector<int32_t>>;

struct OpenAiRequest {
  std::string model;                      // empty: not said
  nlohmann::ordered_json messages;        // of a chat
  std::vector<CompletionPrompt> prompts;  // of completions, at least one
  SampleOptions sample;
  int64_t choices = 1;  // of each prompt
  std::optional<int64_t> max_tokens;
  std::optional<uint64_t> seed;
  std::vector<std::string> stop;
  bool stream = false;
  bool stream_usage = false;  // tell the counts of tokens at the end of a stream
};

inline constexpr int64_t kMostChoices = 128;
inline constexpr int64_t kMostPrompts = 128;
inline constexpr int64_t kMostStops = 16;
inline constexpr size_t kMostStopBytes = 1024;

// INVALID_ARGUMENT names the field, what it is, and what is allowed. Fields that have no influence
// on an answer are passed over; those that ask for what is not done are refused.
absl::StatusOr<OpenAiRequest> ParseChatRequest(absl::string_view body);
absl::StatusOr<OpenAiRequest> ParseCompletionRequest(absl::string_view body);

}  // namespace espalier
