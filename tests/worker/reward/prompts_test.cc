// Prompts ask in the form that they are of, and jobs have room for what is answered in it.
#include "worker/reward/prompts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <set>
#include <string>

#include "common/base/file_system.h"
#include "common/config/job_file.h"
#include "worker/reward/wordle_teacher.h"

namespace espalier {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST(QuestionPrompt, InAChatShowsTheExamplesFirst) {
  const std::string prompt = SpellPrompt(
      QuestionPrompt("How many?", {{.question = "Q", .solution = "S"}}, PromptForm::kChat));
  EXPECT_THAT(prompt, StartsWith("<|im_start|>system\n"));
  EXPECT_THAT(prompt,
              HasSubstr("<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\nS<|im_end|>"));
  EXPECT_THAT(prompt, EndsWith("<|im_start|>user\nHow many?<|im_end|>\n<|im_start|>assistant\n"));
  EXPECT_EQ(SpellPrompt(QuestionPrompt("How many?", {}, PromptForm::kPlain)), "How many? ");
}

TEST(WordlePrompt, HasTheHistoryAndEndsWhereThinkingBegins) {
  const WordleWord crane = *WordleWord::Parse("CRANE");
  const History history{{crane, Feedback(*WordleWord::Parse("ALLEY"), crane)}};
  const std::string chat = SpellPrompt(WordlePrompt(history, PromptForm::kChat));
  EXPECT_THAT(chat, StartsWith("<|im_start|>system\n"));
  EXPECT_THAT(chat, HasSubstr("1. CRANE: C(x) R(x) A(-) N(x) E(-)\n"));
  EXPECT_THAT(chat, EndsWith("\n<think>"));
  EXPECT_THAT(chat, HasSubstr("S(x) P(x) E(-) E(x) D(-)")) << "the example of the rules";
  EXPECT_EQ(SpellPrompt(WordlePrompt(history, PromptForm::kPlain)),
            "Wordle. CRANE XXYXY.\n<think>");
  EXPECT_EQ(SpellPrompt(WordlePrompt({}, PromptForm::kPlain)), "Wordle.\n<think>");
  for (const PromptForm form : {PromptForm::kPlain, PromptForm::kChat}) {
    EXPECT_EQ(WordleCompletion("So.", crane, form), "So.</think>\n<guess>CRANE</guess>");
  }
  EXPECT_EQ(*ParsePromptForm("chat"), PromptForm::kChat);
  EXPECT_THAT(std::string(ParsePromptForm("short").status().message()), HasSubstr("plain, chat"));
}

TEST(WordlePrompt, OfGuessesAloneAsksForNoThought) {
  const WordleWord crane = *WordleWord::Parse("CRANE"), alley = *WordleWord::Parse("ALLEY");
  const History history{{crane, Feedback(alley, crane)}};
  EXPECT_EQ(*ParsePromptForm("guess"), PromptForm::kGuess);
  const std::string prompt = SpellPrompt(WordlePrompt(history, PromptForm::kGuess));
  EXPECT_THAT(prompt, StartsWith("<|im_start|>system\nYou play Wordle"));
  EXPECT_THAT(prompt, HasSubstr("1. CRANE: C(x) R(x) A(-) N(x) E(-)\n"));
  EXPECT_THAT(prompt, EndsWith("<|im_start|>assistant\n"));
  EXPECT_THAT(prompt, Not(HasSubstr("think")));
  EXPECT_EQ(WordleCompletion("So.", alley, PromptForm::kGuess), "<guess>ALLEY</guess>");
}

// As many as any tokenizer of a large model makes of it, at most: of a word one, but of the guess
// one a letter, and one of all else but blanks.
int64_t TokensOf(PromptForm form) {
  const WordleWord guess = *WordleWord::Parse("CRANE");
  const std::string text = WordleCompletion(TeachThoughts({}, guess), guess, form);
  const std::regex token("[A-Z]{5}|[A-Za-z]+|[^ ]");
  int64_t tokens = 0;
  for (std::sregex_iterator it(text.begin(), text.end(), token), end; it != end; ++it) {
    tokens += it->str() == "CRANE" ? 5 : 1;
  }
  return tokens;
}

// The form that a job's file says, or that of the file by which its start is made.
PromptForm FormOf(const std::string& path) {
  const std::string start = path.substr(0, path.size() - 5) + "-start.yaml";
  for (const std::string& one : {path, start}) {
    const auto text = PosixFileSystem().Read(one, 1 << 20);
    std::smatch found;
    if (text.ok() && std::regex_search(*text, found, std::regex("--form ([a-z]+)"))) {
      return *ParsePromptForm(found[1].str());
    }
  }
  return PromptForm::kChat;
}

// Nothing is learnt where no completion comes to its guess.
TEST(WordlePrompt, JobsHaveRoomForATurnInTheFormOfTheirPrompts) {
  const std::string jobs = ESPALIER_SOURCE_DIR "/configs/jobs";
  const auto names = PosixFileSystem().List(jobs);
  ASSERT_TRUE(names.ok()) << names.status();
  std::set<PromptForm> forms;
  for (const std::string& name : *names) {
    const auto spec = LoadJobFile(jobs + "/" + name);
    ASSERT_TRUE(spec.ok()) << spec.status();
    if (spec->train().verifier().kind() != "wordle") continue;
    const PromptForm form = FormOf(jobs + "/" + name);
    forms.insert(form);
    EXPECT_GE(spec->train().rollout().max_new_tokens(), TokensOf(form)) << name;
  }
  EXPECT_EQ(forms.size(), 3U) << "each form has a job";
  EXPECT_LE(TokensOf(PromptForm::kGuess), 16);
  EXPECT_GT(TokensOf(PromptForm::kChat), 16) << "a thought has no room there";
}

}  // namespace
}  // namespace espalier
