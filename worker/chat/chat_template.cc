#include "worker/chat/chat_template.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "worker/chat/functions.h"
#include "worker/chat/interpreter.h"
#include "worker/chat/parser.h"
#include "worker/formats/json_fields.h"

namespace espalier {
namespace {

constexpr char kChatMl[] =
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

// The template among several: [{"name": "default", "template": "..."}, ...].
std::string TemplateNamed(const nlohmann::json& templates, const char* name) {
  for (const nlohmann::json& one : templates) {
    if (!one.is_object() || one.value("name", nlohmann::json()) != name) continue;
    const auto text = one.find("template");
    if (text != one.end() && text->is_string()) return text->get<std::string>();
  }
  return "";
}

bool HasGeneration(const std::vector<Statement>& statements) {
  return std::any_of(statements.begin(), statements.end(), [](const Statement& statement) {
    return statement.kind == Statement::Kind::kGeneration || HasGeneration(statement.body) ||
           HasGeneration(statement.otherwise);
  });
}

}  // namespace

absl::StatusOr<ChatTemplate::Source> ChatTemplate::ParseSource(absl::string_view source) {
  ASSIGN_OR_RETURN(std::vector<Statement> statements, ParseTemplate(source));
  const bool marks_answers = HasGeneration(statements);
  return Source{std::move(statements), marks_answers};
}

absl::StatusOr<ChatTemplate> ChatTemplate::Parse(absl::string_view source) {
  ASSIGN_OR_RETURN(Source parsed, ParseSource(source));
  return ChatTemplate(std::move(parsed));
}

absl::StatusOr<ChatTemplate> ChatTemplate::FromTokenizerConfig(absl::string_view config_json) {
  ASSIGN_OR_RETURN(const nlohmann::json config, ParseJsonObject(config_json));
  const auto found = config.find("chat_template");
  const bool several = found != config.end() && found->is_array();
  std::string source;
  if (found != config.end() && found->is_string()) source = found->get<std::string>();
  if (several) source = TemplateNamed(*found, "default");
  if (source.empty()) {
    return absl::NotFoundError("tokenizer_config.json has no chat_template");
  }
  ASSIGN_OR_RETURN(ChatTemplate result, Parse(source));
  const std::string of_tools = several ? TemplateNamed(*found, "tool_use") : "";
  if (!of_tools.empty()) result.of_tools_ = ParseSource(of_tools);
  for (const auto& [key, value] : config.items()) {
    if (!absl::EndsWith(key, "_token")) continue;
    const bool object = value.is_object() && value.contains("content");
    const nlohmann::json& token = object ? value["content"] : value;
    if (!token.is_string()) continue;
    ASSIGN_OR_RETURN(Value text, Value::Text(token.get<std::string>()));
    result.tokens_.emplace_back(key, std::move(text));
  }
  return result;
}

ChatTemplate ChatTemplate::ChatMl() {
  absl::StatusOr<ChatTemplate> parsed = Parse(kChatMl);
  ESPALIER_CHECK(parsed.ok(), "ChatML is a template");
  return *std::move(parsed);
}

absl::StatusOr<const ChatTemplate::Source*> ChatTemplate::SourceFor(
    const nlohmann::ordered_json& variables) const {
  const auto tools = variables.find("tools");
  if (!of_tools_ || tools == variables.end() || tools->is_null()) return &source_;
  if (of_tools_->ok()) return &**of_tools_;
  return absl::Status(of_tools_->status().code(),
                      absl::StrCat("the template 'tool_use': ", of_tools_->status().message()));
}

absl::StatusOr<MarkedText> ChatTemplate::Write(const nlohmann::ordered_json& variables,
                                               const Options& options) const {
  if (!variables.is_object()) return absl::InvalidArgumentError("the variables are no object");
  ASSIGN_OR_RETURN(const Source* source, SourceFor(variables));
  Value::Dict all = GlobalFunctions(options.now);
  all.insert(all.end(), tokens_.begin(), tokens_.end());
  all.emplace_back("add_generation_prompt", Value(options.add_generation_prompt));
  for (const auto& [name, json] : variables.items()) {
    ASSIGN_OR_RETURN(Value value, Value::FromJson(json));
    all.emplace_back(name, std::move(value));
  }
  Interpreter interpreter(all);
  MarkedText marked;
  ASSIGN_OR_RETURN(marked.text, interpreter.Run(source->statements));
  marked.answers = interpreter.generated();
  return marked;
}

absl::StatusOr<std::string> ChatTemplate::Render(const nlohmann::ordered_json& variables,
                                                 const Options& options) const {
  ASSIGN_OR_RETURN(MarkedText marked, Write(variables, options));
  return std::move(marked.text);
}

absl::StatusOr<std::string> ChatTemplate::RenderMessage(const std::string& message,
                                                        const Options& options) const {
  nlohmann::ordered_json variables;
  variables["messages"] = nlohmann::ordered_json::array({{{"role", "user"}, {"content", message}}});
  return Render(variables, options);
}

absl::StatusOr<ChatTemplate> ChatTemplateOf(const Tokenizer& tokenizer) {
  absl::StatusOr<ChatTemplate> chat = ChatTemplate::FromTokenizerConfig(tokenizer.ConfigJson());
  if (absl::IsNotFound(chat.status()) && tokenizer.IdOf("<|im_start|>")) {
    return ChatTemplate::ChatMl();
  }
  if (chat.ok()) return chat;
  return absl::Status(chat.status().code(),
                      absl::StrCat("the model cannot be talked to: ", chat.status().message(),
                                   "; `espalier generate` without --chat has it continue a text"));
}

absl::StatusOr<std::vector<int32_t>> ConversationIds(const ChatTemplate& chat,
                                                     const Tokenizer& tokenizer,
                                                     const nlohmann::ordered_json& messages,
                                                     absl::Time now) {
  nlohmann::ordered_json variables;
  variables["messages"] = messages;
  ASSIGN_OR_RETURN(const std::string text,
                   chat.Render(variables, {.add_generation_prompt = true, .now = now}));
  std::vector<int32_t> ids;
  RETURN_IF_ERROR(tokenizer.Encode(text, ids, {.special_tokens = true}));
  return ids;
}

}  // namespace espalier
