// ChatTemplate: the text that a model is given for a conversation, by the Jinja template of its
// tokenizer, as transformers' apply_chat_template writes it. Used by worker/generate_verb.cc,
// worker/chat_verb.cc, worker/serve_verb.cc, worker/serve and worker/data/row_renderer.h.
// Immutable: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "worker/chat/syntax.h"
#include "worker/tokenizer/tokenizer.h"

namespace espalier {

// A rendered conversation, and where in it the assistant's answers lie, in order: what a model that
// is shown all before them is to write, with the mark that ends an answer.
struct MarkedText {
  std::string text;
  std::vector<TextSpan> answers;
};

class ChatTemplate {
 public:
  // INVALID_ARGUMENT names the line and what is not known there.
  static absl::StatusOr<ChatTemplate> Parse(absl::string_view source);
  // The template of a tokenizer_config.json: `chat_template`, or of several the one named
  // "default", and for conversations with tools the one named "tool_use", as in transformers; with
  // the special tokens that it names. NOT_FOUND without one.
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
  // The same without a generation prompt, with the answers: those that {% generation %} marks, or,
  // in a template without it, what the conversation up to an answer has more than the conversation
  // before it with a generation prompt, or as much of its end as is left once others follow (Qwen 3
  // writes <think> before the last one alone). INVALID_ARGUMENT besides for messages that are no
  // list of objects, and when answers cannot be told in what the template writes of these.
  absl::StatusOr<MarkedText> RenderMarked(const nlohmann::ordered_json& variables,
                                          absl::Time now) const;
  // The same of one message of a user.
  absl::StatusOr<std::string> RenderMessage(const std::string& message,
                                            const Options& options) const;

 private:
  struct Source {
    std::vector<Statement> statements;
    bool marks_answers = false;  // it has a {% generation %}
  };
  explicit ChatTemplate(Source source) : source_(std::move(source)) {}
  static absl::StatusOr<Source> ParseSource(absl::string_view source);
  // The one that writes a conversation with these variables.
  absl::StatusOr<const Source*> SourceFor(const nlohmann::ordered_json& variables) const;
  absl::StatusOr<MarkedText> Write(const nlohmann::ordered_json& variables,
                                   const Options& options) const;
  // The answer that is message `at`, in `text`, which all of the messages are rendered to.
  absl::StatusOr<TextSpan> AnswerOf(const nlohmann::ordered_json& variables, size_t at,
                                    absl::string_view text, absl::Time now) const;
  // How much of the end of `answer`, which is message `at` while it is the last, `rest` begins
  // with: at least what ends an answer and something before it, else 0.
  absl::StatusOr<size_t> EndOfRewritten(const nlohmann::ordered_json& variables, size_t at,
                                        absl::string_view answer, absl::string_view rest,
                                        absl::Time now) const;

  Source source_;
  // Where it is another one; what is wrong with it matters to conversations with tools alone.
  std::optional<absl::StatusOr<Source>> of_tools_;
  Value::Dict tokens_;  // "bos_token" and so on
};

// The template of a tokenizer, or ChatML where it has none but knows its tokens. NOT_FOUND where
// there is neither, with what the model can do without.
absl::StatusOr<ChatTemplate> ChatTemplateOf(const Tokenizer& tokenizer);

// Ids of `messages`, [{"role": ..., "content": ...}, ...], and the beginning of the answer. Special
// tokens are tokens, also those that messages spell, as in transformers. Errors as
// ChatTemplate::Render and Tokenizer::Encode have them.
absl::StatusOr<std::vector<int32_t>> ConversationIds(const ChatTemplate& chat,
                                                     const Tokenizer& tokenizer,
                                                     const nlohmann::ordered_json& messages,
                                                     absl::Time now);

}  // namespace espalier
