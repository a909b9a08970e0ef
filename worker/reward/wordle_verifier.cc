#include "worker/reward/wordle_verifier.h"

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/reward/record.h"
#include "worker/reward/wordle.h"

namespace espalier {
namespace {

using Json = nlohmann::ordered_json;

absl::StatusOr<WordleWord> WordOf(const Json& value) {
  if (value.is_string()) {
    if (const auto word = WordleWord::Parse(value.get_ref<const std::string&>())) return *word;
  }
  return absl::InvalidArgumentError(
      absl::StrCat(DumpJson(value), " is no word of five letters, all of one case"));
}

// ["CRANE", "XXYXY"], ["CRANE"] or "CRANE".
absl::StatusOr<Guess> GuessOf(const Json& value, WordleWord secret) {
  const bool listed = value.is_array() && (value.size() == 1 || value.size() == 2);
  ASSIGN_OR_RETURN(const WordleWord word, WordOf(listed ? value[0] : value));
  const Guess guess{.word = word, .pattern = Feedback(secret, word)};
  if (!listed || value.size() == 1) return guess;
  if (!value[1].is_string()) {
    return absl::InvalidArgumentError(absl::StrCat("the marks of ", word.text(), " are ",
                                                   DumpJson(value[1]), ", which is no text"));
  }
  ASSIGN_OR_RETURN(const Pattern marks, ParseMarks(word, value[1].get_ref<const std::string&>()));
  if (marks == guess.pattern) return guess;
  return absl::InvalidArgumentError(
      absl::StrCat("the marks of ", word.text(), " are ", SpellPattern(marks), ", but the secret ",
                   secret.text(), " gives it ", SpellPattern(guess.pattern)));
}

absl::StatusOr<WordleRecord> RecordOf(const Json& json) {
  WordleRecord record;
  if (!json.contains("secret")) return absl::InvalidArgumentError("it has no 'secret'");
  ASSIGN_OR_RETURN(record.secret, WordOf(json["secret"]));
  if (!json.contains("history")) return record;
  if (!json["history"].is_array()) {
    return absl::InvalidArgumentError(
        "its 'history' is no list of guesses, such as [[\"CRANE\", \"XXYXY\"]]");
  }
  for (const Json& value : json["history"]) {
    ASSIGN_OR_RETURN(const Guess guess, GuessOf(value, record.secret));
    record.history.push_back(guess);
  }
  return record;
}

class WordleVerifier final : public Verifier {
 public:
  WordleVerifier(Vocabulary vocabulary, WordleRewardOptions options)
      : vocabulary_(std::move(vocabulary)), options_(options) {}

  absl::StatusOr<std::vector<Judgement>> Judge(absl::Span<const Completion> completions,
                                               const TrainingMoment& moment) override {
    std::vector<Judgement> judgements;
    WordlePosition position;
    for (size_t i = 0; i < completions.size(); ++i) {
      if (i == 0 || completions[i].record != completions[i - 1].record) {
        ASSIGN_OR_RETURN(position, PositionOf(completions[i].record));
      }
      judgements.push_back(
          JudgeTurn(position, vocabulary_.guesses, completions[i].text, options_, moment));
    }
    return judgements;
  }

 private:
  absl::StatusOr<WordlePosition> PositionOf(absl::string_view json) const {
    ASSIGN_OR_RETURN(WordleRecord record, ParseWordleRecord(json));
    WordlePosition position{.secret = record.secret, .history = std::move(record.history)};
    position.candidates = Candidates(vocabulary_.secrets.words(), position.history);
    return position;
  }

  const Vocabulary vocabulary_;
  const WordleRewardOptions options_;
};

}  // namespace

absl::StatusOr<WordleRecord> ParseWordleRecord(absl::string_view json) {
  ASSIGN_OR_RETURN(const Json object, ParseRecord(json));
  absl::StatusOr<WordleRecord> record = RecordOf(object);
  if (!record.ok()) return RecordError(record.status(), json);
  return record;
}

std::string WriteWordleRecord(const WordleRecord& record) {
  Json json{{"secret", record.secret.text()}, {"history", Json::array()}};
  for (const Guess& guess : record.history) {
    json["history"].push_back({guess.word.text(), SpellPattern(guess.pattern)});
  }
  return json.dump();
}

std::unique_ptr<Verifier> MakeWordleVerifier(Vocabulary vocabulary, WordleRewardOptions options) {
  return std::make_unique<WordleVerifier>(std::move(vocabulary), options);
}

}  // namespace espalier
