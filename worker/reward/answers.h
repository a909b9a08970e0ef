// Answers that are numbers, "<answer>6000</answer>" in a completion: reading them, comparing them
// with the right ones, the verifiers of unit conversion and arithmetic, and the figures of many
// answers. Used by open_verifier.cc, and by evaluations (worker/task). Pure but for the verifiers,
// which belong to one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "worker/reward/verifier.h"

namespace espalier {

enum class AnswerKind {
  // A number; right when |round(a) - round(c)| < 0.05 |round(c)| for a right answer c, each rounded
  // to three decimals; where round(c) is 0, when a rounds to 0 too.
  kMeasure,
  // A whole number, without a point or an exponent; right when it is the same one.
  kWhole,
};

// What stands between the first "<answer>" and the "</answer>" behind it, without the blanks around
// it; nullopt when one of them is missing.
std::optional<absl::string_view> AnswerText(absl::string_view completion);

// A finite number, as C and Python write it; not "nan", "inf", "1_000", "6,000" or "6 kg".
std::optional<double> ParseMeasure(absl::string_view text);
// Of 18 digits at most, perhaps with a sign.
std::optional<int64_t> ParseWhole(absl::string_view text);

bool IsRightMeasure(double answer, double right);

// Judges records {"answer": NUMBER, ...}; other members, such as "question", are not looked at.
// The components: format, 0.1 for an answer that can be read, and correct, 1 for a right one, which
// alone is accepted.
std::unique_ptr<Verifier> MakeAnswerVerifier(AnswerKind kind);

// Shares of answers that were given, by judgements of such a verifier or of another one: what is
// accepted was answered, whatever its components.
class AnswerTally {
 public:
  void Add(const Judgement& judgement);
  double accuracy() const { return Share(right_); }
  // Of questions, those with an answer that could be read, right or wrong.
  double answer_rate() const { return Share(answered_); }
  int64_t questions() const { return questions_; }
  int64_t answered() const { return answered_; }
  int64_t right() const { return right_; }

 private:
  double Share(int64_t part) const {
    return questions_ > 0 ? static_cast<double>(part) / static_cast<double>(questions_) : 0;
  }
  int64_t questions_ = 0;
  int64_t answered_ = 0;
  int64_t right_ = 0;
};

}  // namespace espalier
