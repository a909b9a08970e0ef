// `pre_tokenizer` of tokenizer.json.
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/formats/json_fields.h"
#include "worker/tokenizer/pre_tokenizer.h"
#include "worker/tokenizer/unicode_text.h"

namespace espalier {
namespace {

constexpr size_t kStepsMax = 32;
constexpr char kGpt2[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
constexpr char kPunctuation[] = "[\\p{P}!-/:-@\\[-`{-~]";

// The value of a key that may be absent.
bool Flag(const nlohmann::json& json, const char* key, bool absent) {
  const auto it = json.find(key);
  return it != json.end() && it->is_boolean() ? it->get<bool>() : absent;
}

}  // namespace

absl::StatusOr<PreTokenizer::Behavior> PreTokenizer::BehaviorFromName(const std::string& name) {
  if (name == "Isolated") return Behavior::kIsolated;
  if (name == "Removed") return Behavior::kRemoved;
  if (name == "Contiguous") return Behavior::kContiguous;
  if (name == "MergedWithPrevious") return Behavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return Behavior::kMergedWithNext;
  return absl::InvalidArgumentError(
      absl::StrCat("the behavior '", name.substr(0, 40), "' of a pre-tokenizer is not known; ",
                   "allowed: Isolated, Removed, Contiguous, MergedWithPrevious, MergedWithNext"));
}

absl::StatusOr<PreTokenizer::Split> PreTokenizer::SplitFromJson(const nlohmann::json& json) {
  ASSIGN_OR_RETURN(const nlohmann::json* pattern, ObjectField(json, "pattern"));
  const bool regex = pattern->contains("Regex");
  ASSIGN_OR_RETURN(const std::string text, StringField(*pattern, regex ? "Regex" : "String"));
  ASSIGN_OR_RETURN(TextPattern compiled,
                   regex ? TextPattern::Compile(text) : TextPattern::Literal(text));
  ASSIGN_OR_RETURN(const std::string behavior, StringField(json, "behavior"));
  ASSIGN_OR_RETURN(const Behavior known, BehaviorFromName(behavior));
  return Split{std::move(compiled), known, Flag(json, "invert", false)};
}

absl::StatusOr<PreTokenizer::Metaspace> PreTokenizer::MetaspaceFromJson(
    const nlohmann::json& json) {
  ASSIGN_OR_RETURN(const std::string mark, StringField(json, "replacement"));
  // Several would make a text longer with each, and so would one that holds spaces.
  if (mark.empty() || mark == " " || FirstCodePoint(mark).bytes != mark.size()) {
    return absl::InvalidArgumentError(absl::StrCat("the 'replacement' of Metaspace is '",
                                                   mark.substr(0, 40),
                                                   "'; allowed: one character, no space"));
  }
  std::string scheme = "always";
  if (json.contains("prepend_scheme")) {
    ASSIGN_OR_RETURN(scheme, StringField(json, "prepend_scheme"));
  } else if (!Flag(json, "add_prefix_space", true)) {
    scheme = "never";
  }
  if (scheme != "always" && scheme != "first" && scheme != "never") {
    return absl::InvalidArgumentError(absl::StrCat("the 'prepend_scheme' of Metaspace is '",
                                                   scheme.substr(0, 40),
                                                   "'; allowed: always, first, never"));
  }
  return Metaspace{mark, scheme == "always", scheme == "first", Flag(json, "split", true)};
}

absl::Status PreTokenizer::AddSplit(absl::string_view expression, Behavior behavior) {
  ASSIGN_OR_RETURN(TextPattern pattern, TextPattern::Compile(expression));
  steps_.emplace_back(std::in_place_type<Split>, Split{std::move(pattern), behavior, false});
  return absl::OkStatus();
}

absl::Status PreTokenizer::Add(const nlohmann::json& json) {
  if (!json.is_object()) return absl::InvalidArgumentError("a pre-tokenizer is not an object");
  ASSIGN_OR_RETURN(const std::string type, StringField(json, "type"));
  if (byte_level_) {
    return absl::UnimplementedError(absl::StrCat("the pre-tokenizer ", type.substr(0, 40),
                                                 " comes after ByteLevel, which must "
                                                 "be the last one"));
  }
  if (steps_.size() >= kStepsMax) {
    return absl::InvalidArgumentError(absl::StrCat("more than ", kStepsMax, " pre-tokenizers"));
  }
  if (type == "Split") {
    ASSIGN_OR_RETURN(Split split, SplitFromJson(json));
    steps_.emplace_back(std::in_place_type<Split>, std::move(split));
    return absl::OkStatus();
  }
  if (type == "Digits") {
    return AddSplit("\\p{N}", Flag(json, "individual_digits", false) ? Behavior::kIsolated
                                                                     : Behavior::kContiguous);
  }
  if (type == "Punctuation") {
    std::string behavior = "Isolated";
    if (json.contains("behavior")) {
      ASSIGN_OR_RETURN(behavior, StringField(json, "behavior"));
    }
    ASSIGN_OR_RETURN(const Behavior known, BehaviorFromName(behavior));
    return AddSplit(kPunctuation, known);
  }
  if (type == "Metaspace") {
    for (const Step& step : steps_) {
      if (!std::holds_alternative<Metaspace>(step)) continue;
      return absl::UnimplementedError("two pre-tokenizers are Metaspace; supported: one");
    }
    ASSIGN_OR_RETURN(Metaspace metaspace, MetaspaceFromJson(json));
    steps_.emplace_back(std::in_place_type<Metaspace>, std::move(metaspace));
    return absl::OkStatus();
  }
  if (type == "ByteLevel") {
    byte_level_ = true;
    if (Flag(json, "add_prefix_space", true)) steps_.emplace_back(std::in_place_type<PrefixSpace>);
    return Flag(json, "use_regex", true) ? AddSplit(kGpt2, Behavior::kIsolated) : absl::OkStatus();
  }
  return absl::UnimplementedError(
      absl::StrCat("the pre-tokenizer '", type.substr(0, 40), "' is not supported; supported: ",
                   "Sequence, Split, ByteLevel, Digits, Punctuation, Metaspace"));
}

absl::StatusOr<PreTokenizer> PreTokenizer::FromJson(const nlohmann::json& json) {
  PreTokenizer result;
  if (json.is_null()) return result;
  if (!json.is_object() || json.value("type", nlohmann::json()) != "Sequence") {
    RETURN_IF_ERROR(result.Add(json));
    return result;
  }
  ASSIGN_OR_RETURN(const nlohmann::json* list, ArrayField(json, "pretokenizers"));
  for (const nlohmann::json& one : *list) RETURN_IF_ERROR(result.Add(one));
  return result;
}

}  // namespace espalier
