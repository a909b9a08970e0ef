#include "worker/reward/answers.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "worker/reward/record.h"

namespace espalier {
namespace {

constexpr char kOpen[] = "<answer>", kClose[] = "</answer>";
constexpr double kFormatReward = 0.1, kCorrectReward = 1;
constexpr double kTolerance = 0.05;
constexpr size_t kShownBytes = 40;
constexpr size_t kWholeDigitsMax = 18;
// Beyond, a double has no decimals.
constexpr double kWholeFrom = 4503599627370496.0;  // 2^52

double RoundToThousandths(double value) {
  return std::abs(value) >= kWholeFrom / 1000 ? value : std::nearbyint(value * 1000) / 1000;
}

std::string Shown(absl::string_view text) {
  return absl::StrCat("'", absl::CHexEscape(text.substr(0, kShownBytes)), "'");
}

// An answer that was read, beside the right one.
struct Verdict {
  bool read = false;
  bool right = false;
};

class AnswerVerifier final : public Verifier {
 public:
  explicit AnswerVerifier(AnswerKind kind) : kind_(kind) {}

  absl::StatusOr<std::vector<Judgement>> Judge(absl::Span<const Completion> completions,
                                               const TrainingMoment&) override {
    std::vector<Judgement> judgements;
    nlohmann::ordered_json right;
    for (size_t i = 0; i < completions.size(); ++i) {
      if (i == 0 || completions[i].record != completions[i - 1].record) {
        ASSIGN_OR_RETURN(right, RightAnswer(completions[i].record));
      }
      judgements.push_back(JudgeOne(completions[i].text, right));
    }
    return judgements;
  }

 private:
  absl::StatusOr<nlohmann::ordered_json> RightAnswer(absl::string_view record) const {
    ASSIGN_OR_RETURN(const nlohmann::ordered_json json, ParseRecord(record));
    const auto it = json.find("answer");
    const bool whole = kind_ == AnswerKind::kWhole;
    const bool sound = it != json.end() && (whole ? it->is_number_integer() : it->is_number());
    if (sound && std::isfinite(it->get<double>())) return *it;
    return RecordError(absl::InvalidArgumentError(
                           absl::StrCat("its 'answer' is no ", whole ? "whole " : "", "number")),
                       record);
  }

  Verdict Compare(absl::string_view text, const nlohmann::ordered_json& right) const {
    if (kind_ == AnswerKind::kWhole) {
      const std::optional<int64_t> answer = ParseWhole(text);
      return {.read = answer.has_value(), .right = answer && *answer == right.get<int64_t>()};
    }
    const std::optional<double> answer = ParseMeasure(text);
    return {.read = answer.has_value(),
            .right = answer && IsRightMeasure(*answer, right.get<double>())};
  }

  Judgement JudgeOne(absl::string_view completion, const nlohmann::ordered_json& right) const {
    const std::optional<absl::string_view> text = AnswerText(completion);
    const Verdict verdict = text ? Compare(*text, right) : Verdict{};
    Judgement judgement;
    judgement.Add("format", verdict.read ? kFormatReward : 0);
    judgement.Add("correct", verdict.right ? kCorrectReward : 0);
    if (!text) {
      judgement.invalid = "there is no <answer>...</answer>";
    } else if (!verdict.read) {
      judgement.invalid =
          absl::StrCat(Shown(*text), kind_ == AnswerKind::kWhole ? " is no whole number"
                                                                 : " is no finite number");
    } else if (!verdict.right) {
      judgement.invalid = absl::StrCat(Shown(*text), " is not ", DumpJson(right));
    }
    return judgement;
  }

  const AnswerKind kind_;
};

}  // namespace

std::optional<absl::string_view> AnswerText(absl::string_view completion) {
  const size_t open = completion.find(kOpen);
  if (open == absl::string_view::npos) return std::nullopt;
  const absl::string_view rest = completion.substr(open + sizeof(kOpen) - 1);
  const size_t close = rest.find(kClose);
  if (close == absl::string_view::npos) return std::nullopt;
  return absl::StripAsciiWhitespace(rest.substr(0, close));
}

std::optional<double> ParseMeasure(absl::string_view text) {
  if (text.find_first_not_of("0123456789+-.eE") != absl::string_view::npos) return std::nullopt;
  double value = 0;
  if (!absl::SimpleAtod(text, &value) || !std::isfinite(value)) return std::nullopt;
  return value;
}

std::optional<int64_t> ParseWhole(absl::string_view text) {
  absl::string_view digits = text;
  if (!absl::ConsumePrefix(&digits, "-")) absl::ConsumePrefix(&digits, "+");
  if (digits.empty() || digits.size() > kWholeDigitsMax) return std::nullopt;
  int64_t value = 0;
  for (const char c : digits) {
    if (!absl::ascii_isdigit(static_cast<unsigned char>(c))) return std::nullopt;
    value = value * 10 + (c - '0');
  }
  return text[0] == '-' ? -value : value;
}

bool IsRightMeasure(double answer, double right) {
  const double a = RoundToThousandths(answer), c = RoundToThousandths(right);
  const double difference = std::abs(a - c);
  return c == 0 ? difference < 0.001 : difference < kTolerance * std::abs(c);
}

std::unique_ptr<Verifier> MakeAnswerVerifier(AnswerKind kind) {
  return std::make_unique<AnswerVerifier>(kind);
}

void AnswerTally::Add(const Judgement& judgement) {
  ++questions_;
  answered_ += judgement.accepted() || judgement.component("format") > 0 ? 1 : 0;
  right_ += judgement.accepted() ? 1 : 0;
}

}  // namespace espalier
