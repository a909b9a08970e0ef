// Records of prompts with completions of a model, and answers of a user's verifier.
#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "tests/fuzz/damage.h"
#include "tests/fuzz/target.h"
#include "worker/reward/answers.h"
#include "worker/reward/external_answer.h"
#include "worker/reward/record.h"
#include "worker/reward/wordle_verifier.h"

namespace espalier {
namespace {

std::string CheckFinite(const Judgement& judgement) {
  bool finite = std::isfinite(judgement.total);
  for (const RewardComponent& one : judgement.components) finite &= std::isfinite(one.value);
  return finite ? "" : "a reward that is not finite";
}

// Of numbers, and of Wordle with each set of rewards.
const std::vector<std::unique_ptr<Verifier>>& Verifiers() {
  static const auto& verifiers = *[] {
    auto made = std::make_unique<std::vector<std::unique_ptr<Verifier>>>();
    made->push_back(MakeAnswerVerifier(AnswerKind::kMeasure));
    made->push_back(MakeAnswerVerifier(AnswerKind::kWhole));
    std::vector<WordleWord> words;
    for (const char* word : {"CRANE", "SWEAT", "ALLEY", "SLATE", "FUZZY"}) {
      words.push_back(*WordleWord::Parse(word));
    }
    const WordList list = *WordList::Of(words);
    for (const RewardSet set :
         {RewardSet::kPredibase, RewardSet::kShaped, RewardSet::kGuessOnly, RewardSet::kAgreeing}) {
      made->push_back(MakeWordleVerifier({.guesses = list, .secrets = list}, {.set = set}));
    }
    return made.release();
  }();
  return verifiers;
}

// A record on the first line, a completion on the others.
std::string CheckRecord(absl::string_view input) {
  const size_t end = std::min(input.find('\n'), input.size());
  const absl::string_view record = input.substr(0, end);
  const Completion completion{.record = record,
                              .text = input.substr(std::min(end + 1, input.size()))};
  for (const auto& verifier : Verifiers()) {
    const auto judged = verifier->Judge({&completion, 1}, {.step = 3, .progress = 0.5});
    std::string broken = judged.ok() ? CheckFinite(judged->front()) : BrokenBy(judged.status());
    if (!broken.empty()) return broken;
  }
  const auto read = ParseWordleRecord(record);
  if (!read.ok()) return BrokenBy(read.status());
  const std::string text = WriteWordleRecord(*read);
  const auto again = ParseWordleRecord(text);
  if (!again.ok()) return absl::StrCat("what it writes is refused: ", again.status().ToString());
  return WriteWordleRecord(*again) == text ? "" : "what it writes is another record";
}

std::vector<std::string> RecordSeeds() {
  return {R"({"answer": 6000, "question": "6 km in m?"})"
          "\nso <answer> 6e3 </answer>",
          R"({"answer": -1.5e-3})"
          "\n<answer>-0.0015</answer>",
          R"j({"secret": "ALLEY", "history": [["CRANE", "C(x) R(x) A(-) N(x) E(-)"]]})j"
          "\na is elsewhere</think>\n<guess>ALLEY</guess>",
          R"({"secret": "SLATE", "history": [["CRANE", "XXYXY"], "SWEAT"]})"
          "\nx</think> <GUESS>word: slate</guess>"};
}

std::string DamageRecord(const std::string& input, std::mt19937_64& random) {
  static constexpr absl::string_view kWords[] = {
      "<answer>", "</answer>", "<think>", "</think>",
      "<guess>",  "</guess>",  "secret",  "history",
      "answer",   "ALLEY",     "CRANE",   "XXYXY",
      "1e308",    "nan",       "-",       "999999999999999999999",
      "\n"};
  const size_t end = std::min(input.find('\n'), input.size());
  if (random() % 2 == 0) {
    return absl::StrCat(input.substr(0, end), DamagedText(input.substr(end), kWords, random));
  }
  return absl::StrCat(DamagedJson(input.substr(0, end), kWords, random), input.substr(end));
}

std::string CheckAnswer(absl::string_view input) {
  const auto answer = ParseExternalAnswer(input);
  return answer.ok() ? CheckFinite(answer->judgement) : BrokenBy(answer.status());
}

std::vector<std::string> AnswerSeeds() {
  return {R"({"id": 7, "total": 0.5})",
          R"({"id": 8, "components": {"format": 0.1, "correct": 1}, "invalid": "no"})",
          R"({"id": 9, "total": -1e3, "components": {}, "invalid": null})"};
}

std::string DamageAnswer(const std::string& input, std::mt19937_64& random) {
  static constexpr absl::string_view kWords[] = {
      "id", "total", "components", "invalid", "1e308", "1.7e308", "nan", "Infinity", ",", ":"};
  return random() % 2 == 0 ? DamagedText(input, kWords, random)
                           : DamagedJson(input, kWords, random);
}

}  // namespace

FuzzTarget RecordTarget() {
  return {"reward_record", CheckRecord, RecordSeeds, DamageRecord, 8000};
}
FuzzTarget AnswerTarget() {
  return {"verifier_answer", CheckAnswer, AnswerSeeds, DamageAnswer, 8000};
}

}  // namespace espalier
