#include "worker/reward/question_data.h"

#include <algorithm>
#include <cmath>
#include <unordered_set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"

namespace espalier {
namespace {

// A generator that gives nothing new so often in a row has nothing new.
constexpr int kRepeatsMax = 2000;
constexpr double kWholeMax = 1e15;

std::string RecordOf(const Question& question) {
  const nlohmann::ordered_json text = question.text;
  return absl::StrCat("{\"question\": ", DumpJson(text), ", \"answer\": ", question.answer, "}");
}

}  // namespace

absl::Status MakeQuestionData(const std::function<Question(SplitMix64& random)>& generate,
                              const std::vector<WorkedExample>& examples,
                              const QuestionDataOptions& options, absl::string_view advice,
                              DataWriter& writer) {
  const DataAmount& amount = options.amount;
  RETURN_IF_ERROR(CheckAmount(amount));
  SplitMix64 random(amount.seed);
  std::unordered_set<std::string> asked;
  if (options.form == PromptForm::kChat) {  // which shows them, solved
    for (const WorkedExample& one : examples) asked.insert(one.key);
  }
  int repeats = 0;
  const int64_t wanted = amount.train + amount.validation;
  for (int64_t made = 0; made < wanted;) {
    const Question question = generate(random);
    if (!asked.insert(question.key).second) {
      if (++repeats < kRepeatsMax) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("asked for ", amount.train, " + ", amount.validation,
                       " different questions, and after ", made, " of them ", kRepeatsMax,
                       " in a row were none that is new; ask for fewer, or ", advice));
    }
    repeats = 0;
    const DataSplit split = made++ < amount.train ? DataSplit::kTrain : DataSplit::kValidation;
    const Prompt prompt = QuestionPrompt(question.text, examples, options.form);
    RETURN_IF_ERROR(writer.AddExample(split, prompt, question.solution));
    RETURN_IF_ERROR(
        writer.AddPrompt(split, {.prompt = SpellPrompt(prompt), .record = RecordOf(question)}));
  }
  return absl::OkStatus();
}

std::string SpellNumber(double value) {
  constexpr int kDigits = 6;
  if (value == std::round(value) && std::abs(value) < kWholeMax) {
    return absl::StrFormat("%.0f", value + 0.0);  // no "-0"
  }
  const int before = static_cast<int>(std::floor(std::log10(std::abs(value)))) + 1;
  std::string text = absl::StrFormat("%.*f", std::clamp(kDigits - before, 0, 17), value);
  if (text.find('.') == std::string::npos) return text;
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

}  // namespace espalier
