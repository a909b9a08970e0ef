#include "worker/reward/external_answer.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/json_shape.h"
#include "common/base/status_macros.h"
#include "worker/reward/record.h"

namespace espalier {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kShownBytes = 200;

absl::StatusOr<double> FiniteNumber(const Json& value, absl::string_view what) {
  if (value.is_number() && std::isfinite(value.get<double>())) return value.get<double>();
  return absl::InvalidArgumentError(absl::StrCat(
      "its ", what, " is ", DumpJson(value).substr(0, kShownBytes), ", which is no finite number"));
}

absl::Status ReadComponents(const Json& components, Judgement& judgement) {
  if (!components.is_object()) {
    return absl::InvalidArgumentError("its 'components' is no object of numbers");
  }
  for (const auto& [name, value] : components.items()) {
    ASSIGN_OR_RETURN(
        const double number,
        FiniteNumber(value, absl::StrCat("component '", name.substr(0, kShownBytes), "'")));
    judgement.Add(name, number);
  }
  return absl::OkStatus();
}

// Of an answer, besides its id.
absl::StatusOr<Judgement> ReadJudgement(const Json& answer) {
  Judgement judgement;
  for (const auto& [key, value] : answer.items()) {
    if (key == "error") {
      const std::string text = value.is_string() ? value.get<std::string>() : DumpJson(value);
      return absl::InvalidArgumentError(
          absl::StrCat("it cannot judge: ", text.substr(0, kShownBytes)));
    }
    if (key == "components") {
      RETURN_IF_ERROR(ReadComponents(value, judgement));
    } else if (key == "invalid" && value.is_string()) {
      judgement.invalid = value.get<std::string>();
    } else if (key == "invalid" && !value.is_null()) {
      return absl::InvalidArgumentError("its 'invalid' is no text; it says why, or is left out");
    } else if (key != "id" && key != "total" && key != "invalid") {
      return absl::InvalidArgumentError(
          absl::StrCat("it has '", key.substr(0, kShownBytes),
                       "'; allowed: id, total, components, invalid, error"));
    }
  }
  if (answer.contains("total")) {
    ASSIGN_OR_RETURN(judgement.total, FiniteNumber(answer["total"], "'total'"));
  } else if (!answer.contains("components")) {
    return absl::InvalidArgumentError("it has neither 'total' nor 'components'");
  }
  if (!std::isfinite(judgement.total)) {
    return absl::InvalidArgumentError("its components add up to no finite number");
  }
  return judgement;
}

}  // namespace

absl::StatusOr<ExternalAnswer> ParseExternalAnswer(absl::string_view line) {
  RETURN_IF_ERROR(CheckShape(line));
  const Json answer = Json::parse(line.begin(), line.end(), nullptr, /*allow_exceptions=*/false);
  if (!answer.is_object()) {
    const bool number = absl::StrContains(line, "NaN") || absl::StrContains(line, "Infinity");
    return absl::InvalidArgumentError(
        number ? "it is no JSON object: JSON has no NaN and no Infinity; answer a finite number"
               : "it is no JSON object");
  }
  if (!answer.contains("id") || !answer["id"].is_number_integer()) {
    return absl::InvalidArgumentError("it has no 'id' that is a whole number");
  }
  ASSIGN_OR_RETURN(Judgement judgement, ReadJudgement(answer));
  return ExternalAnswer{.id = answer["id"].get<int64_t>(), .judgement = std::move(judgement)};
}

absl::Status NoAnswer(absl::string_view program, absl::string_view line, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(
      "the verifier `", program, "` wrote a line that is no answer: ", why, ". The line: '",
      absl::CHexEscape(line.substr(0, kShownBytes)), line.size() > kShownBytes ? "..." : "",
      "'. An answer is {\"id\": 7, \"total\": 0.5}, one a line; what is for people belongs on "
      "standard error"));
}

}  // namespace espalier
