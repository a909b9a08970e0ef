#include "worker/serve/openai_request.h"

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/json_shape.h"
#include "common/base/status_macros.h"

namespace espalier {
namespace {

using Json = nlohmann::ordered_json;

absl::Status Wrong(absl::string_view field, const Json& seen, absl::string_view allowed) {
  std::string text = seen.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > 60) text = absl::StrCat(text.substr(0, 60), "...");
  return absl::InvalidArgumentError(
      absl::StrCat("'", field, "' is ", text, "; allowed: ", allowed));
}

absl::StatusOr<Json> ReadBody(absl::string_view body) {
  if (const absl::Status shape = CheckShape(body); !shape.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("the body: ", shape.message()));
  }
  Json json = Json::parse(body.begin(), body.end(), nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) {
    return absl::InvalidArgumentError("the body is no JSON; send an object, in UTF-8");
  }
  if (!json.is_object()) return absl::InvalidArgumentError("the body is no JSON object");
  return json;
}

// The value of a field; null where it is missing or null, which is the same to OpenAI.
const Json& At(const Json& body, const char* field) {
  static const Json& none = *new Json();
  const auto found = body.find(field);
  return found == body.end() ? none : *found;
}

absl::Status ReadNumber(const Json& body, const char* field, double& value) {
  const Json& seen = At(body, field);
  if (seen.is_null()) return absl::OkStatus();
  if (!seen.is_number()) return Wrong(field, seen, "a number");
  value = seen.get<double>();
  return absl::OkStatus();
}

absl::StatusOr<std::optional<int64_t>> ReadInteger(const Json& body, const char* field,
                                                   int64_t least, int64_t most) {
  const Json& seen = At(body, field);
  if (seen.is_null()) return std::nullopt;
  const std::string allowed = absl::StrCat("an integer from ", least, " to ", most);
  if (!seen.is_number_integer()) return Wrong(field, seen, allowed);
  if (seen.is_number_unsigned() &&
      seen.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return Wrong(field, seen, allowed);
  }
  const auto value = seen.get<int64_t>();
  if (value < least || value > most) return Wrong(field, seen, allowed);
  return value;
}

absl::Status ReadFlag(const Json& body, const char* field, bool& value) {
  const Json& seen = At(body, field);
  if (seen.is_null()) return absl::OkStatus();
  if (!seen.is_boolean()) return Wrong(field, seen, "true or false");
  value = seen.get<bool>();
  return absl::OkStatus();
}

absl::Status ReadStops(const Json& body, std::vector<std::string>& stops) {
  const Json& seen = At(body, "stop");
  if (seen.is_null()) return absl::OkStatus();
  const Json list = seen.is_array() ? seen : Json::array({seen});
  const std::string allowed =
      absl::StrCat("a text of 1 to ", kMostStopBytes, " bytes, or up to ", kMostStops, " of them");
  if (list.size() > static_cast<size_t>(kMostStops)) return Wrong("stop", seen, allowed);
  for (const Json& one : list) {
    if (!one.is_string()) return Wrong("stop", seen, allowed);
    std::string text = one.get<std::string>();
    if (text.empty() || text.size() > kMostStopBytes) return Wrong("stop", seen, allowed);
    stops.push_back(std::move(text));
  }
  return absl::OkStatus();
}

// What changes an answer and is not done: the values that ask for nothing are passed.
absl::Status RefuseUnknown(const Json& body) {
  struct Refused {
    const char* field;
    bool (*harmless)(const Json&);
  };
  const auto empty = [](const Json& value) { return value.is_structured() && value.empty(); };
  const auto no = [](const Json& value) {
    return value == false || (value.is_number() && value == 0);
  };
  const Refused fields[] = {
      {"logprobs", [](const Json& value) { return value == false; }},
      {"top_logprobs", no},
      {"echo", no},
      {"suffix", [](const Json& value) { return value == ""; }},
      {"best_of", [](const Json& value) { return value == 1; }},
      {"logit_bias", empty},
      {"tools", empty},
      {"functions", empty},
      {"tool_choice", [](const Json& value) { return value == "none" || value == "auto"; }},
      {"response_format",
       [](const Json& value) {
         return value.is_object() && value.size() == 1 && value.value("type", Json()) == "text";
       }},
      {"audio", empty},
      {"modalities", [](const Json& value) { return value == Json::array({"text"}); }},
  };
  for (const Refused& refused : fields) {
    const Json& seen = At(body, refused.field);
    if (seen.is_null() || refused.harmless(seen)) continue;
    return Wrong(refused.field, seen, "nothing: this server does not do that; leave it out");
  }
  return absl::OkStatus();
}

// What both have.
absl::Status ReadCommon(const Json& body, OpenAiRequest& request) {
  RETURN_IF_ERROR(RefuseUnknown(body));
  const Json& model = At(body, "model");
  if (!model.is_null() && !model.is_string()) return Wrong("model", model, "a text");
  if (model.is_string()) request.model = model.get<std::string>();
  SampleOptions& sample = request.sample;
  RETURN_IF_ERROR(ReadNumber(body, "temperature", sample.temperature));
  RETURN_IF_ERROR(ReadNumber(body, "top_p", sample.top_p));
  RETURN_IF_ERROR(ReadNumber(body, "min_p", sample.min_p));
  RETURN_IF_ERROR(ReadNumber(body, "repetition_penalty", sample.repetition_penalty));
  RETURN_IF_ERROR(ReadNumber(body, "presence_penalty", sample.presence_penalty));
  RETURN_IF_ERROR(ReadNumber(body, "frequency_penalty", sample.frequency_penalty));
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  ASSIGN_OR_RETURN(const std::optional<int64_t> top_k, ReadInteger(body, "top_k", -1, kMost));
  sample.top_k = top_k && *top_k > 0 ? *top_k : 0;  // -1: all, as vLLM has it
  RETURN_IF_ERROR(CheckSampleOptions(sample));
  ASSIGN_OR_RETURN(const std::optional<int64_t> n, ReadInteger(body, "n", 1, kMostChoices));
  request.choices = n.value_or(1);
  ASSIGN_OR_RETURN(request.max_tokens, ReadInteger(body, "max_tokens", 0, kMost));
  ASSIGN_OR_RETURN(const std::optional<int64_t> seed,
                   ReadInteger(body, "seed", std::numeric_limits<int64_t>::min(),
                               std::numeric_limits<int64_t>::max()));
  if (seed) request.seed = static_cast<uint64_t>(*seed);
  RETURN_IF_ERROR(ReadStops(body, request.stop));
  RETURN_IF_ERROR(ReadFlag(body, "stream", request.stream));
  const Json& options = At(body, "stream_options");
  if (options.is_null()) return absl::OkStatus();
  if (!options.is_object()) return Wrong("stream_options", options, "an object");
  return ReadFlag(options, "include_usage", request.stream_usage);
}

// A message's content as one text: a text, or parts that are texts.
absl::StatusOr<std::string> ContentOf(const Json& message) {
  constexpr char kAllowed[] = "a text, or parts of \"type\": \"text\"";
  const Json& content = At(message, "content");
  if (content.is_null()) return std::string();
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) return Wrong("messages[].content", content, kAllowed);
  std::string text;
  for (const Json& part : content) {
    if (!part.is_object() || At(part, "type") != "text" || !At(part, "text").is_string()) {
      return Wrong("messages[].content", part, kAllowed);
    }
    text += At(part, "text").get<std::string>();
  }
  return text;
}

absl::Status ReadMessages(const Json& body, Json& messages) {
  const Json& seen = At(body, "messages");
  if (!seen.is_array() || seen.empty()) {
    return Wrong("messages", seen, "a list of one message or more");
  }
  messages = Json::array();
  for (const Json& message : seen) {
    if (!message.is_object() || !At(message, "role").is_string()) {
      return Wrong("messages[]", message, "an object with \"role\" and \"content\"");
    }
    if (!At(message, "tool_calls").is_null() && !At(message, "tool_calls").empty()) {
      return Wrong("messages[].tool_calls", At(message, "tool_calls"),
                   "nothing: this server does not call tools");
    }
    ASSIGN_OR_RETURN(const std::string content, ContentOf(message));
    messages.push_back({{"role", At(message, "role")}, {"content", content}});
  }
  return absl::OkStatus();
}

bool AreIds(const Json& value) {
  return value.is_array() && !value.empty() && value[0].is_number();
}

absl::StatusOr<CompletionPrompt> PromptOf(const Json& value) {
  constexpr char kAllowed[] = "a text, a list of ids, or a list of such";
  if (value.is_string()) return value.get<std::string>();
  if (!AreIds(value)) return Wrong("prompt", value, kAllowed);
  std::vector<int32_t> ids;
  for (const Json& id : value) {
    constexpr uint64_t kMost = std::numeric_limits<int32_t>::max();
    if (!id.is_number_unsigned() || id.get<uint64_t>() > kMost) {  // what is below 0 is signed
      return Wrong("prompt", id, "ids of the vocabulary");
    }
    ids.push_back(static_cast<int32_t>(id.get<uint64_t>()));
  }
  return ids;
}

absl::Status ReadPrompts(const Json& body, std::vector<CompletionPrompt>& prompts) {
  const Json& seen = At(body, "prompt");
  const bool many = seen.is_array() && !AreIds(seen);
  if (many && (seen.empty() || seen.size() > static_cast<size_t>(kMostPrompts))) {
    return Wrong("prompt", seen, absl::StrCat("1 to ", kMostPrompts, " prompts"));
  }
  const Json list = many ? seen : Json::array({seen.is_null() ? Json("") : seen});
  for (const Json& one : list) {
    ASSIGN_OR_RETURN(CompletionPrompt prompt, PromptOf(one));
    prompts.push_back(std::move(prompt));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<OpenAiRequest> ParseChatRequest(absl::string_view text) {
  ASSIGN_OR_RETURN(const Json body, ReadBody(text));
  OpenAiRequest request;
  RETURN_IF_ERROR(ReadCommon(body, request));
  // The newer name of the same.
  ASSIGN_OR_RETURN(
      const std::optional<int64_t> most,
      ReadInteger(body, "max_completion_tokens", 0, std::numeric_limits<int32_t>::max()));
  if (most) request.max_tokens = most;
  RETURN_IF_ERROR(ReadMessages(body, request.messages));
  return request;
}

absl::StatusOr<OpenAiRequest> ParseCompletionRequest(absl::string_view text) {
  ASSIGN_OR_RETURN(const Json body, ReadBody(text));
  OpenAiRequest request;
  RETURN_IF_ERROR(ReadCommon(body, request));
  constexpr int64_t kDefault = 16;  // OpenAI's
  if (!request.max_tokens) request.max_tokens = kDefault;
  RETURN_IF_ERROR(ReadPrompts(body, request.prompts));
  return request;
}

}  // namespace espalier
