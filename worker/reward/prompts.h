// How prompts are framed, and the texts of Wordle's. Used by worker/reward,
// worker/make_data_verb.cc. Pure: any thread.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "worker/reward/wordle.h"

namespace espalier {

enum class PromptForm {
  kPlain,  // the question alone: for models that learn it from examples
  kChat,   // ChatML with instructions and examples, and the assistant's turn opened
};
// "plain" or "chat".
absl::StatusOr<PromptForm> ParsePromptForm(absl::string_view text);

struct ChatTurn {
  std::string role;  // system, user or assistant
  std::string content;
};
// The turns in ChatML, and an assistant's turn that begins with `opening`.
std::string SpellChatMl(absl::Span<const ChatTurn> turns, absl::string_view opening);

// A game before its next turn. Either form ends with "<think>", behind which a completion goes on
// with reasoning, "</think>", a line break and "<guess>WORD</guess>".
std::string WordlePrompt(absl::Span<const Guess> history, PromptForm form);
// Such a completion.
std::string WordleCompletion(absl::string_view thoughts, WordleWord guess);

// A question that is answered by reasoning with "<answer>NUMBER</answer>" in it. Plain: the
// question and a blank. A chat shows the worked examples first.
struct WorkedExample {
  std::string question;
  std::string solution;
};
std::string QuestionPrompt(absl::string_view question, absl::Span<const WorkedExample> examples,
                           PromptForm form);

}  // namespace espalier
