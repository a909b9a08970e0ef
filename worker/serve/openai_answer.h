// Answers in OpenAI's form: whole, as chunks of a stream, errors, the list of models. Used by
// openai_server.cc. Any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace espalier {

// What all chunks of an answer say of it.
struct AnswerHead {
  bool chat = false;
  std::string id;  // "chatcmpl-..." or "cmpl-..."
  std::string model;
  int64_t created = 0;  // seconds since 1970
};

struct TokenUsage {
  int64_t prompt = 0, completion = 0;
};

struct AnsweredChoice {
  std::string text;
  std::string finish;  // "stop" or "length"
};

// JSON texts. Texts are UTF-8.
std::string WholeAnswer(const AnswerHead& head, const std::vector<AnsweredChoice>& choices,
                        const TokenUsage& usage);
// The first chunk of a choice of a chat, which says who speaks.
std::string RoleChunk(const AnswerHead& head, int64_t choice);
// More text of a choice; an empty `finish`: more follows.
std::string TextChunk(const AnswerHead& head, int64_t choice, absl::string_view text,
                      absl::string_view finish);
// The last chunk, where it was asked for.
std::string UsageChunk(const AnswerHead& head, const TokenUsage& usage);
std::string ModelList(const std::string& model, int64_t created);
std::string ModelEntry(const std::string& model, int64_t created);

// A refusal: its HTTP status and its body.
struct OpenAiError {
  int http_status = 500;
  std::string body;
};
OpenAiError ErrorOf(const absl::Status& status);
// The same of what HTTP itself has a number for; `code` may be empty.
OpenAiError ErrorOf(int http_status, absl::string_view message, absl::string_view code = "");

}  // namespace espalier
