#include "worker/tokenizer/normalizer.h"

#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/formats/json_fields.h"

namespace espalier {
namespace {

constexpr int kDepthMax = 8;
constexpr size_t kStepsMax = 32;

std::string Stripped(absl::string_view text, bool left, bool right) {
  while (left && !text.empty()) {
    const CodePoint point = FirstCodePoint(text);
    if (!IsSpace(point.value)) break;
    text.remove_prefix(point.bytes);
  }
  while (right && !text.empty()) {
    const CodePoint point = LastCodePoint(text);
    if (!IsSpace(point.value)) break;
    text.remove_suffix(point.bytes);
  }
  return std::string(text);
}

// A text grows by a normalizer, but not with each of many.
constexpr size_t kGrowthMax = 64, kGrowthBytesMax = size_t{1} << 20;

absl::StatusOr<std::string> Replaced(const TextPattern& pattern, absl::string_view by,
                                     absl::string_view text, size_t most) {
  std::string out;
  PatternMatches matches(pattern, text);
  size_t done = 0;
  for (;;) {
    ASSIGN_OR_RETURN(const auto match, matches.Next());
    if (!match) break;
    absl::StrAppend(&out, text.substr(done, match->begin - done), by);
    if (out.size() > most) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the normalizer makes over ", most, " bytes of a text"));
    }
    done = match->end;
  }
  absl::StrAppend(&out, text.substr(done));
  return out;
}

}  // namespace

absl::StatusOr<std::string> Normalizer::Applied(const Step& step, std::string text, size_t most) {
  if (const auto* form = std::get_if<NormalForm>(&step)) return Normalized(text, *form);
  if (const auto* replace = std::get_if<Replace>(&step)) {
    return Replaced(replace->pattern, replace->by, text, most);
  }
  if (const auto* strip = std::get_if<Strip>(&step)) {
    return Stripped(text, strip->left, strip->right);
  }
  const Prepend& prepend = std::get<Prepend>(step);
  return text.empty() ? text : absl::StrCat(prepend.text, text);
}

absl::StatusOr<std::string> Normalizer::Apply(absl::string_view text, TextStart start) const {
  std::string out(text);
  const size_t most = kGrowthBytesMax + kGrowthMax * text.size();
  for (const Step& step : steps_) {
    if (start == TextStart::kContinues && std::holds_alternative<Prepend>(step)) continue;
    ASSIGN_OR_RETURN(out, Applied(step, std::move(out), most));
  }
  return out;
}

absl::Status Normalizer::Add(const nlohmann::json& json, int depth) {
  static const auto& forms = *new std::map<std::string, NormalForm>{{"NFC", NormalForm::kC},
                                                                    {"NFD", NormalForm::kD},
                                                                    {"NFKC", NormalForm::kKC},
                                                                    {"NFKD", NormalForm::kKD}};
  if (!json.is_object()) return absl::InvalidArgumentError("a normalizer is not an object");
  ASSIGN_OR_RETURN(const std::string type, StringField(json, "type"));
  if (depth > kDepthMax || steps_.size() >= kStepsMax) {
    return absl::InvalidArgumentError(absl::StrCat("more than ", kStepsMax, " normalizers"));
  }
  if (const auto form = forms.find(type); form != forms.end()) {
    steps_.push_back(form->second);
  } else if (type == "Prepend") {
    ASSIGN_OR_RETURN(std::string text, StringField(json, "prepend"));
    steps_.push_back(Prepend{std::move(text)});
  } else if (type == "Strip") {
    JsonKeys keys(json, "tokenizer.json", "normalizer.");
    steps_.push_back(Strip{keys.Flag("strip_left", false), keys.Flag("strip_right", false)});
    return keys.status();
  } else if (type == "Replace") {
    ASSIGN_OR_RETURN(const nlohmann::json* pattern, ObjectField(json, "pattern"));
    const bool regex = pattern->contains("Regex");
    ASSIGN_OR_RETURN(const std::string text, StringField(*pattern, regex ? "Regex" : "String"));
    ASSIGN_OR_RETURN(TextPattern compiled,
                     regex ? TextPattern::Compile(text) : TextPattern::Literal(text));
    ASSIGN_OR_RETURN(std::string content, StringField(json, "content"));
    steps_.push_back(Replace{std::move(compiled), std::move(content)});
  } else if (type == "Sequence") {
    ASSIGN_OR_RETURN(const nlohmann::json* list, ArrayField(json, "normalizers"));
    for (const nlohmann::json& one : *list) RETURN_IF_ERROR(Add(one, depth + 1));
  } else {
    return absl::UnimplementedError(
        absl::StrCat("the normalizer '", type.substr(0, 40), "' is not supported; supported: ",
                     "Sequence, NFC, NFD, NFKC, NFKD, Prepend, Replace, Strip"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Normalizer> Normalizer::FromJson(const nlohmann::json& json) {
  Normalizer result;
  if (!json.is_null()) RETURN_IF_ERROR(result.Add(json, 0));
  return result;
}

}  // namespace espalier
