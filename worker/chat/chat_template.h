// ChatTemplate: the text that a model is given for a conversation, by the Jinja template of its
// tokenizer, as transformers' apply_chat_template writes it. Used by generate_verb.cc. Immutable:
// any thread.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "worker/chat/syntax.h"

namespace espalier {

class ChatTemplate {
 public:
  // INVALID_ARGUMENT names the line and what is not known there.
  static absl::StatusOr<ChatTemplate> Parse(absl::string_view source);
  // The template of a tokenizer_config.json: `chat_template`, or the one named "default" of
  // several; with the special tokens that it names. NOT_FOUND without one.
  static absl::StatusOr<ChatTemplate> FromTokenizerConfig(absl::string_view config_json);
  // That of Qwen and SmolLM2, for tokenizers without one: <|im_start|>ROLE\nTEXT<|im_end|>\n.
  static ChatTemplate ChatMl();

  ChatTemplate(ChatTemplate&&) = default;
  ChatTemplate& operator=(ChatTemplate&&) = default;

  struct Options {
    bool add_generation_prompt = false;  // begin the answer
    absl::Time now;                      // what strftime_now() says
  };
  // `variables`: "messages", and what else the template asks for, such as "tools". It may name the
  // special tokens too ("bos_token"). FAILED_PRECONDITION: the template refuses the messages, and
  // says why; INVALID_ARGUMENT, UNIMPLEMENTED and RESOURCE_EXHAUSTED name the line.
  absl::StatusOr<std::string> Render(const nlohmann::ordered_json& variables,
                                     const Options& options) const;
  // The same of one message of a user.
  absl::StatusOr<std::string> RenderMessage(const std::string& message,
                                            const Options& options) const;

 private:
  explicit ChatTemplate(std::vector<Statement> statements);

  std::vector<Statement> statements_;
  Value::Dict tokens_;  // "bos_token" and so on
};

}  // namespace espalier
