// How prompts are framed, and the texts of Wordle's. Used by worker/reward,
// worker/task and worker/make_data_verb.cc. Pure: any thread.
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
  kGuess,  // of Wordle: ChatML that asks for the word alone, without a thought
};
// "plain", "chat" or "guess".
absl::StatusOr<PromptForm> ParsePromptForm(absl::string_view text);

struct ChatTurn {
  std::string role;  // system, user or assistant
  std::string content;
};
// What a completion goes on from.
struct Prompt {
  std::vector<ChatTurn> turns;  // none in the plain form
  // What stands before the completion: the beginning of the assistant's turn, or all there is.
  std::string opening;
};
// In ChatML, its special tokens spelled out; plain as it is.
std::string SpellPrompt(const Prompt& prompt);

// A game before its next turn. Plain and chat end with "<think>", behind which a completion goes on
// with reasoning, "</think>", a line break and "<guess>WORD</guess>"; behind the form of guesses
// alone it is "<guess>WORD</guess>".
Prompt WordlePrompt(absl::Span<const Guess> history, PromptForm form);
// Such a completion; without `thoughts` in the form of guesses alone.
std::string WordleCompletion(absl::string_view thoughts, WordleWord guess, PromptForm form);

// A question that is answered by reasoning with "<answer>NUMBER</answer>" in it. Plain: the
// question and a blank. A chat shows the worked examples first. There is no form of guesses.
struct WorkedExample {
  std::string question;
  std::string solution;
  std::string key = {};  // Question::key
};
Prompt QuestionPrompt(absl::string_view question, absl::Span<const WorkedExample> examples,
                      PromptForm form);

}  // namespace espalier
