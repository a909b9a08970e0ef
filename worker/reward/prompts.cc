#include "worker/reward/prompts.h"

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

// What all chats begin with.
constexpr absl::string_view kWordleRules =
    "You play Wordle: find a secret English word of five letters in at most six guesses.\n"
    "\n"
    "Every letter of a guess gets a mark:\n"
    "  (✓)  the secret has this letter at this very place\n"
    "  (-)  the secret has this letter, but at another place\n"
    "  (x)  the secret does not have this letter. In a guess that has a letter twice, the secret "
    "has\n"
    "       it as often as it is marked (✓) or (-), and no more\n"
    "\n"
    "An example: when the secret is ABIDE, the guess SPEED is marked\n"
    "  S(x) P(x) E(-) E(x) D(-)\n"
    "so the secret has exactly one E, which is not the third letter, and a D, which is not the "
    "last; "
    "it has no S and no P.\n"
    "\n";

constexpr absl::string_view kThinkFirst =
    "First think about what the marks say, inside <think> </think>: which letters have their "
    "place, "
    "which are elsewhere, which are not there. Then, on a line of its own, answer with one word of "
    "five capital letters that agrees with all marks, inside <guess> </guess>, such as:\n"
    "<think>The secret has an E at the end and no A.</think>\n"
    "<guess>TROPE</guess>";

constexpr absl::string_view kGuessAlone =
    "Answer with one word of five capital letters that agrees with all marks, inside <guess> "
    "</guess>, and with nothing else, such as:\n"
    "<guess>TROPE</guess>";

constexpr absl::string_view kQuestionRules =
    "You answer questions with a number. Reason briefly, step by step, and write the number alone "
    "inside <answer> </answer>.";

Prompt WordleChat(absl::Span<const Guess> history, PromptForm form) {
  std::string user = history.empty() ? "Nothing is known yet." : "Your guesses so far:";
  for (size_t i = 0; i < history.size(); ++i) {
    absl::StrAppend(&user, "\n", i + 1, ". ", history[i].word.text(), ": ", SpellMarks(history[i]));
  }
  absl::StrAppend(&user, history.empty() ? " Make your first guess." : "\nMake your next guess.");
  const bool thinks = form == PromptForm::kChat;
  const std::string rules = absl::StrCat(kWordleRules, thinks ? kThinkFirst : kGuessAlone);
  return {.turns = {{"system", rules}, {"user", user}},
          .opening = thinks ? "Let me think about the marks.\n<think>" : ""};
}

}  // namespace

absl::StatusOr<PromptForm> ParsePromptForm(absl::string_view text) {
  if (text == "plain") return PromptForm::kPlain;
  if (text == "chat") return PromptForm::kChat;
  if (text == "guess") return PromptForm::kGuess;
  return absl::InvalidArgumentError(absl::StrCat("there is no form of prompts '", text,
                                                 "'; allowed: plain, chat, and guess of wordle"));
}

std::string SpellPrompt(const Prompt& prompt) {
  if (prompt.turns.empty()) return prompt.opening;
  std::string text;
  for (const ChatTurn& turn : prompt.turns) {
    absl::StrAppend(&text, "<|im_start|>", turn.role, "\n", turn.content, "<|im_end|>\n");
  }
  return absl::StrCat(text, "<|im_start|>assistant\n", prompt.opening);
}

Prompt WordlePrompt(absl::Span<const Guess> history, PromptForm form) {
  if (form != PromptForm::kPlain) return WordleChat(history, form);
  std::string text = "Wordle.";
  for (const Guess& guess : history) {
    absl::StrAppend(&text, " ", guess.word.text(), " ", SpellPattern(guess.pattern), ".");
  }
  return {.opening = text + "\n<think>"};
}

std::string WordleCompletion(absl::string_view thoughts, WordleWord guess, PromptForm form) {
  const std::string answer = absl::StrCat("<guess>", guess.text(), "</guess>");
  return form == PromptForm::kGuess ? answer : absl::StrCat(thoughts, "</think>\n", answer);
}

Prompt QuestionPrompt(absl::string_view question, absl::Span<const WorkedExample> examples,
                      PromptForm form) {
  if (form == PromptForm::kPlain) return {.opening = absl::StrCat(question, " ")};
  Prompt prompt{.turns = {{"system", std::string(kQuestionRules)}}};
  for (const WorkedExample& example : examples) {
    prompt.turns.push_back({"user", example.question});
    prompt.turns.push_back({"assistant", example.solution});
  }
  prompt.turns.push_back({"user", std::string(question)});
  return prompt;
}

}  // namespace espalier
