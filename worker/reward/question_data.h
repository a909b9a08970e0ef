// Questions with one number for an answer: what a generator of them gives, and the data that is
// made of them. Used by worker/reward and worker/make_data_verb.cc. Pure but for what is written:
// any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/base/random.h"
#include "worker/reward/data_writer.h"
#include "worker/reward/prompts.h"

namespace espalier {

struct Question {
  // Questions of the same key ask the same thing in other words.
  std::string key;
  std::string text;
  // A number as JSON has it.
  std::string answer;
  // Worked, with "<answer>...</answer>" at its end. The verifier accepts it.
  std::string solution;
};

struct QuestionDataOptions {
  DataAmount amount;  // questions
  PromptForm form = PromptForm::kPlain;
};

// Questions until there are as many as asked for, no key twice, so that nothing that is asked in
// validation was asked in training, nor what a chat shows as an example. Each is an example with
// its solution, and a prompt with the record {"question": ..., "answer": ...}. INVALID_ARGUMENT:
// the generator does not have so many; `advice` says what makes it have more.
absl::Status MakeQuestionData(const std::function<Question(SplitMix64& random)>& generate,
                              const std::vector<WorkedExample>& examples,
                              const QuestionDataOptions& options, absl::string_view advice,
                              DataWriter& writer);

// A number as a person writes it: whole ones whole, others with six digits at most; never with an
// exponent.
std::string SpellNumber(double value);

}  // namespace espalier
