#include "worker/data/fine_tune_row.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "worker/data/bad_rows.h"
#include "worker/data/json_lines.h"
#include "worker/data/message_tree.h"

namespace espalier {
namespace {

using Json = nlohmann::ordered_json;

// A template is rendered once for each answer, over all messages before it.
constexpr size_t kMessagesMax = 1024;
constexpr char kAdvice[] =
    "choose the format with --format, and its columns with --prompt-field, "
    "--completion-field or --jsonl-field";

// Who speaks, in the words of ShareGPT's files; "" for one that is not known.
std::string RoleOf(absl::string_view from) {
  for (const char* name : {"human", "user", "prompter"}) {
    if (from == name) return "user";
  }
  for (const char* name : {"gpt", "assistant", "chatgpt", "bing", "bard", "model"}) {
    if (from == name) return "assistant";
  }
  for (const char* name : {"function_response", "observation", "tool"}) {
    if (from == name) return "tool";
  }
  return from == "system" ? "system" : "";
}

absl::Status Malformed(size_t message, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("message ", message + 1, " ", what));
}

// Whether there is such a list with something in it.
bool HasSome(const Json& message, const char* key) {
  const auto found = message.find(key);
  return found != message.end() && found->is_array() && !found->empty();
}

// A text, or parts that are texts; templates write what else there may be as Python does.
absl::Status CheckContent(const Json& content, size_t number) {
  constexpr char kAllowed[] =
      "; allowed are a text, and a list of {\"type\": \"text\", \"text\": ...}";
  if (content.is_string()) return absl::OkStatus();
  if (!content.is_array() || content.empty()) {
    return Malformed(number,
                     absl::StrCat("has the content ", content.dump().substr(0, 80),
                                  content.is_null() ? " and no 'tool_calls'" : "", kAllowed));
  }
  for (const Json& part : content) {
    const auto type = part.find("type"), text = part.find("text");
    const bool of_text = part.is_object() && type != part.end() && *type == "text" &&
                         text != part.end() && text->is_string();
    if (of_text) continue;
    return Malformed(
        number, absl::StrCat("has in its content the part ", part.dump().substr(0, 80), kAllowed));
  }
  return absl::OkStatus();
}

absl::Status CheckMessage(const Json& message, size_t number) {
  if (!message.is_object()) return Malformed(number, "is not an object");
  const auto role = message.find("role");
  if (role == message.end() || !role->is_string()) {
    return Malformed(number, absl::StrCat("has no 'role' (it has: ", KeysOfObject(message), ")"));
  }
  const auto content = message.find("content");
  const bool calls = HasSome(message, "tool_calls");  // which may be all that there is
  if (content == message.end()) {
    if (calls) return absl::OkStatus();
    return Malformed(number,
                     absl::StrCat("has no 'content' (it has: ", KeysOfObject(message), ")"));
  }
  return calls && content->is_null() ? absl::OkStatus() : CheckContent(*content, number);
}

// {"from": "human", "value": "x"} to {"role": "user", "content": "x"}; one that has a role stays.
absl::Status TurnIntoMessage(Json& turn, size_t number) {
  if (!turn.is_object() || turn.contains("role")) return absl::OkStatus();
  const auto from = turn.find("from"), value = turn.find("value");
  if (from == turn.end() || !from->is_string() || value == turn.end() || !value->is_string()) {
    return Malformed(number, absl::StrCat("has no 'from' and 'value' that are texts (it has: ",
                                          KeysOfObject(turn), ")"));
  }
  const std::string role = RoleOf(from->get_ref<const std::string&>());
  if (role.empty()) {
    return Malformed(number, absl::StrCat("is from '", from->get<std::string>().substr(0, 40),
                                          "'; known are system, human, user, gpt, assistant, "
                                          "chatgpt, bing, bard, model and tool"));
  }
  turn = Json{{"role", role}, {"content", std::move(*value)}};
  return absl::OkStatus();
}

absl::StatusOr<FineTuneRow> ParseChat(Json object, const std::string& field, bool share_gpt) {
  const auto it = object.find(field);
  if (it == object.end() || !it->is_array()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "no list '", field, "' (the line has: ", KeysOfObject(object), "); ", kAdvice));
  }
  if (it->empty()) return EmptyRow(absl::StrCat("the list '", field, "' is empty"));
  if (it->size() > kMessagesMax) {
    return absl::InvalidArgumentError(absl::StrCat("the list '", field, "' has ", it->size(),
                                                   " messages; at most ", kMessagesMax,
                                                   " are allowed"));
  }
  ChatRow row;
  Json messages = Json::array();
  const auto system = object.find("system");  // some files of ShareGPT have it beside
  if (share_gpt && system != object.end() && system->is_string() && *system != "") {
    messages.push_back({{"role", "system"}, {"content", *system}});
  }
  for (size_t i = 0; i < it->size(); ++i) {
    Json& message = (*it)[i];
    if (share_gpt) RETURN_IF_ERROR(TurnIntoMessage(message, i));
    RETURN_IF_ERROR(CheckMessage(message, i));
    messages.push_back(std::move(message));
  }
  row.variables["messages"] = std::move(messages);
  if (object.contains("tools")) row.variables["tools"] = std::move(object["tools"]);
  return row;
}

absl::StatusOr<FineTuneRow> ParseTree(const Json& object) {
  Json row;
  ASSIGN_OR_RETURN(row["conversations"], BestConversation(object));
  return ParseChat(std::move(row), "conversations", /*share_gpt=*/true);
}

// A text that may be absent or null.
absl::StatusOr<std::string> TakeOptional(Json& object, const std::string& field) {
  const auto it = object.find(field);
  if (it == object.end() || it->is_null()) return std::string();
  return TakeText(object, field, "");
}

absl::StatusOr<FineTuneRow> ParseInstruction(Json object) {
  InstructionRow row;
  ASSIGN_OR_RETURN(row.system, TakeOptional(object, "system"));
  ASSIGN_OR_RETURN(row.instruction, TakeText(object, "instruction", kAdvice));
  ASSIGN_OR_RETURN(row.input, TakeOptional(object, "input"));
  ASSIGN_OR_RETURN(row.output, TakeText(object, "output", kAdvice));
  if (row.output.empty()) return EmptyRow("field 'output' is empty");
  if (row.instruction.empty() && row.input.empty()) {
    return EmptyRow("fields 'instruction' and 'input' are empty");
  }
  return row;
}

absl::StatusOr<FineTuneRow> ParsePair(Json object, const RowFields& fields) {
  PairRow row;
  ASSIGN_OR_RETURN(row.prompt, TakeText(object, fields.prompt,
                                        "every line needs a prompt and a completion; choose the "
                                        "field with --prompt-field"));
  ASSIGN_OR_RETURN(row.completion, TakeText(object, fields.completion,
                                            "every line needs a prompt and a completion; choose "
                                            "the field with --completion-field"));
  if (row.completion.empty()) {
    return EmptyRow(absl::StrCat("field '", fields.completion,
                                 "' is empty: there is nothing to learn from the line"));
  }
  return row;
}

absl::StatusOr<FineTuneRow> ParsePrompt(Json object, const RowFields& fields) {
  PromptRow row;
  ASSIGN_OR_RETURN(row.prompt, TakeText(object, fields.prompt,
                                        "every line needs a prompt and a record; choose the field "
                                        "with --prompt-field"));
  const auto record = object.find(fields.record);
  if (record == object.end() || !record->is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "no object '", fields.record, "' (the line has: ", KeysOfObject(object),
        "); every line needs a prompt and a record, which says what its completions are judged "
        "by: {\"prompt\": \"2 + 3 = \", \"record\": {\"answer\": 5}}"));
  }
  if (row.prompt.empty()) {
    return EmptyRow(
        absl::StrCat("field '", fields.prompt, "' is empty: there is nothing to complete"));
  }
  row.record = record->dump(-1, ' ', false, Json::error_handler_t::replace);
  return row;
}

// The conversation of an answer that is a list of messages. One that begins with what the assistant
// says goes on from the prompt, which is a list, or what the user says; another begins anew.
absl::StatusOr<ChatRow> ParseAnswered(const Json& object, const char* answer,
                                      const RowFields& fields) {
  const Json& said = object.at(answer);
  const auto prompt = object.find(fields.prompt);
  Json messages = Json::array();
  if (prompt != object.end() && prompt->is_array()) {
    messages = *prompt;
  } else if (prompt != object.end() && prompt->is_string() && !said.empty()) {
    const auto role = said.front().find("role");
    const bool goes_on = role != said.front().end() && *role == "assistant";
    if (goes_on) messages.push_back({{"role", "user"}, {"content", *prompt}});
  }
  messages.insert(messages.end(), said.begin(), said.end());
  Json chat;
  chat["messages"] = std::move(messages);
  if (object.contains("tools")) chat["tools"] = object["tools"];
  absl::StatusOr<FineTuneRow> row = ParseChat(std::move(chat), "messages", /*share_gpt=*/false);
  if (row.ok()) return std::get<ChatRow>(*std::move(row));
  return absl::Status(row.status().code(),
                      absl::StrCat("prompt and '", answer, "': ", row.status().message()));
}

absl::StatusOr<FineTuneRow> ParsePreference(Json object, const RowFields& fields) {
  const auto is_list = [&](const char* field) {
    const auto it = object.find(field);
    return it != object.end() && it->is_array();
  };
  PreferenceRow row;
  if (is_list("chosen") && is_list("rejected")) {
    ASSIGN_OR_RETURN(row.chosen, ParseAnswered(object, "chosen", fields));
    ASSIGN_OR_RETURN(row.rejected, ParseAnswered(object, "rejected", fields));
    return row;
  }
  constexpr char kNeeded[] =
      "every line needs a prompt, and a chosen and a rejected answer, which are texts, or lists of "
      "messages both";
  PairRow chosen, rejected;
  ASSIGN_OR_RETURN(chosen.prompt, TakeText(object, fields.prompt, kNeeded));
  ASSIGN_OR_RETURN(chosen.completion, TakeText(object, "chosen", kNeeded));
  ASSIGN_OR_RETURN(rejected.completion, TakeText(object, "rejected", kNeeded));
  rejected.prompt = chosen.prompt;
  if (chosen.completion.empty() || rejected.completion.empty()) {
    return EmptyRow("one of the answers is empty");
  }
  row.chosen = std::move(chosen);
  row.rejected = std::move(rejected);
  return row;
}

}  // namespace

absl::string_view RowFormatName(RowFormat format) {
  switch (format) {
    case RowFormat::kText:
      return "text-rows";
    case RowFormat::kPromptCompletion:
      return "prompt-completion";
    case RowFormat::kMessages:
      return "messages";
    case RowFormat::kShareGpt:
      return "sharegpt";
    case RowFormat::kAlpaca:
      return "alpaca";
    case RowFormat::kOpenAssistant:
      return "openassistant";
    case RowFormat::kPrompts:
      return "prompts";
    case RowFormat::kPreferences:
      return "preferences";
  }
  return "?";
}

absl::StatusOr<RowFormat> RecogniseRow(const Json& row, const RowFields& fields) {
  const auto is_list = [&](const std::string& field) {
    const auto it = row.find(field);
    return it != row.end() && it->is_array();
  };
  if (IsMessageTree(row)) return RowFormat::kOpenAssistant;  // its messages have a text, too
  std::vector<RowFormat> found;
  if (is_list(fields.messages)) found.push_back(RowFormat::kMessages);
  if (is_list(fields.conversations)) found.push_back(RowFormat::kShareGpt);
  if (row.contains(fields.prompt) && row.contains(fields.completion)) {
    found.push_back(RowFormat::kPromptCompletion);
  }
  if (row.contains(fields.prompt) && row.contains(fields.record)) {
    found.push_back(RowFormat::kPrompts);
  }
  if (row.contains("chosen") && row.contains("rejected")) found.push_back(RowFormat::kPreferences);
  if (row.contains("instruction") && row.contains("output")) found.push_back(RowFormat::kAlpaca);
  if (row.contains(fields.text)) found.push_back(RowFormat::kText);
  if (found.size() == 1) return found.front();
  if (found.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the columns are not known; the line has: ", KeysOfObject(row),
                     "; known are '", fields.messages, "', '", fields.conversations, "', '",
                     fields.prompt, "' with '", fields.completion, "' or '", fields.record,
                     "', 'chosen' with 'rejected', 'instruction' with 'output', and '", fields.text,
                     "'; ", kAdvice));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "the line has the columns of several formats (",
      absl::StrJoin(
          found, ", ",
          [](std::string* out, RowFormat format) { absl::StrAppend(out, RowFormatName(format)); }),
      "); choose one of them with --format"));
}

absl::StatusOr<FineTuneRow> ParseRow(Json object, RowFormat format, const RowFields& fields) {
  switch (format) {
    case RowFormat::kText: {
      ASSIGN_OR_RETURN(std::string text, TakeText(object, fields.text, kAdvice));
      if (text.empty()) return EmptyRow(absl::StrCat("field '", fields.text, "' is empty"));
      return TextRow{std::move(text)};
    }
    case RowFormat::kPromptCompletion:
      return ParsePair(std::move(object), fields);
    case RowFormat::kMessages:
      return ParseChat(std::move(object), fields.messages, /*share_gpt=*/false);
    case RowFormat::kShareGpt:
      return ParseChat(std::move(object), fields.conversations, /*share_gpt=*/true);
    case RowFormat::kAlpaca:
      return ParseInstruction(std::move(object));
    case RowFormat::kOpenAssistant:
      return ParseTree(object);
    case RowFormat::kPrompts:
      return ParsePrompt(std::move(object), fields);
    case RowFormat::kPreferences:
      return ParsePreference(std::move(object), fields);
  }
  return absl::InternalError("unknown format of rows");
}

}  // namespace espalier
