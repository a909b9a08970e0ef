#include "worker/serve/openai_answer.h"

#include <nlohmann/json.hpp>

namespace espalier {
namespace {

using Json = nlohmann::ordered_json;

std::string Text(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json Head(const AnswerHead& head, const char* object) {
  return {{"id", head.id}, {"object", object}, {"created", head.created}, {"model", head.model}};
}

Json Chunk(const AnswerHead& head) {
  return Head(head, head.chat ? "chat.completion.chunk" : "text_completion");
}

Json Usage(const TokenUsage& usage) {
  return {{"prompt_tokens", usage.prompt},
          {"completion_tokens", usage.completion},
          {"total_tokens", usage.prompt + usage.completion}};
}

Json FinishOf(absl::string_view finish) {
  return finish.empty() ? Json() : Json(std::string(finish));
}

Json Model(const std::string& model, int64_t created) {
  return {{"id", model}, {"object", "model"}, {"created", created}, {"owned_by", "espalier"}};
}

const char* TypeOf(int http_status) {
  switch (http_status) {
    case 401:
      return "authentication_error";
    case 429:
      return "rate_limit_error";
    default:
      return http_status < 500 ? "invalid_request_error" : "server_error";
  }
}

int HttpStatusOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kOutOfRange:
      return 400;
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kResourceExhausted:
      return 429;
    case absl::StatusCode::kUnavailable:
      return 503;
    default:
      return 500;
  }
}

}  // namespace

std::string WholeAnswer(const AnswerHead& head, const std::vector<AnsweredChoice>& choices,
                        const TokenUsage& usage) {
  Json answer = Head(head, head.chat ? "chat.completion" : "text_completion");
  answer["choices"] = Json::array();
  for (const AnsweredChoice& choice : choices) {
    Json one = {{"index", answer["choices"].size()}};
    if (head.chat) {
      one["message"] = {{"role", "assistant"}, {"content", choice.text}};
    } else {
      one["text"] = choice.text;
    }
    one["logprobs"] = nullptr;
    one["finish_reason"] = FinishOf(choice.finish);
    answer["choices"].push_back(std::move(one));
  }
  answer["usage"] = Usage(usage);
  return Text(answer);
}

std::string RoleChunk(const AnswerHead& head, int64_t choice) {
  Json chunk = Chunk(head);
  chunk["choices"] = Json::array({{{"index", choice},
                                   {"delta", {{"role", "assistant"}, {"content", ""}}},
                                   {"logprobs", nullptr},
                                   {"finish_reason", nullptr}}});
  return Text(chunk);
}

std::string TextChunk(const AnswerHead& head, int64_t choice, absl::string_view text,
                      absl::string_view finish) {
  Json one = {{"index", choice}};
  if (head.chat) {
    one["delta"] = Json::object();
    if (!text.empty()) one["delta"]["content"] = std::string(text);
  } else {
    one["text"] = std::string(text);
  }
  one["logprobs"] = nullptr;
  one["finish_reason"] = FinishOf(finish);
  Json chunk = Chunk(head);
  chunk["choices"] = Json::array({std::move(one)});
  return Text(chunk);
}

std::string UsageChunk(const AnswerHead& head, const TokenUsage& usage) {
  Json chunk = Chunk(head);
  chunk["choices"] = Json::array();
  chunk["usage"] = Usage(usage);
  return Text(chunk);
}

std::string ModelList(const std::string& model, int64_t created) {
  const Json list = {{"object", "list"}, {"data", Json::array({Model(model, created)})}};
  return Text(list);
}

std::string ModelEntry(const std::string& model, int64_t created) {
  return Text(Model(model, created));
}

OpenAiError ErrorOf(const absl::Status& status) {
  return ErrorOf(HttpStatusOf(status), status.message());
}

OpenAiError ErrorOf(int http_status, absl::string_view message, absl::string_view code) {
  const Json error = {{"message", std::string(message)},
                      {"type", TypeOf(http_status)},
                      {"param", nullptr},
                      {"code", FinishOf(code)}};
  const Json body = {{"error", error}};
  return {http_status, Text(body)};
}

}  // namespace espalier
