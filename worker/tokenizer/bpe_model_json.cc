// `model` of tokenizer.json.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "worker/formats/json_fields.h"
#include "worker/tokenizer/bpe_model.h"
#include "worker/tokenizer/byte_letters.h"

namespace espalier {
namespace {

constexpr int64_t kIdMax = (int64_t{1} << 22) - 1;  // as many as a model has rows

absl::Status CheckType(const nlohmann::json& json) {
  const bool looks_like_bpe = !json.contains("type") && json.contains("merges");
  if (looks_like_bpe || json.value("type", nlohmann::json()) == "BPE") return absl::OkStatus();
  const auto type = json.find("type");
  const auto vocabulary = json.find("vocab");
  return absl::UnimplementedError(absl::StrCat(
      "tokenizer.json holds a ",
      type != json.end() && type->is_string() ? type->get<std::string>().substr(0, 40) : "unknown",
      " tokenizer with ", vocabulary == json.end() ? 0 : vocabulary->size(),
      " entries; supported: BPE, and SentencePiece models as tokenizer.model"));
}

absl::Status CheckOptions(const nlohmann::json& json) {
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const auto it = json.find(key);
    if (it == json.end() || it->is_null() || *it == "") continue;
    return absl::UnimplementedError(absl::StrCat("tokenizer.json: model.", key, " is ",
                                                 it->dump().substr(0, 40),
                                                 ", which is not supported; allowed: none"));
  }
  const auto dropout = json.find("dropout");
  if (dropout != json.end() && !dropout->is_null() && *dropout != 0.0) {
    return absl::UnimplementedError(absl::StrCat("tokenizer.json: model.dropout is ",
                                                 dropout->dump().substr(0, 40),
                                                 ", which is not supported; allowed: none"));
  }
  return absl::OkStatus();
}

// The two sides of a merge: "a b", or ["a", "b"].
absl::StatusOr<std::pair<std::string, std::string>> SidesOf(const nlohmann::json& merge) {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
    return std::pair{merge[0].get<std::string>(), merge[1].get<std::string>()};
  }
  if (merge.is_string()) {
    const auto& text = merge.get_ref<const std::string&>();
    const size_t space = text.find(' ');
    if (space != std::string::npos && text.find(' ', space + 1) == std::string::npos) {
      return std::pair{text.substr(0, space), text.substr(space + 1)};
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("the merge ", merge.dump().substr(0, 80), " is no pair of tokens"));
}

}  // namespace

absl::Status BpeModel::TakeVocabulary(const nlohmann::json& json) {
  ASSIGN_OR_RETURN(const nlohmann::json* vocabulary, ObjectField(json, "vocab"));
  vocabulary_.reserve(vocabulary->size());
  for (const auto& [token, id] : vocabulary->items()) {
    if (!id.is_number_integer() || id < 0 || id > kIdMax) {
      return absl::InvalidArgumentError(absl::StrCat("the token '", token.substr(0, 80),
                                                     "' has the id ", id.dump().substr(0, 40),
                                                     "; allowed: 0 to 2^22 - 1"));
    }
    vocabulary_[token] = id.get<int32_t>();
    if (!byte_level_ || !ignore_merges_) continue;
    if (auto bytes = BytesOfLetters(token)) words_[*std::move(bytes)] = id.get<int32_t>();
  }
  return absl::OkStatus();
}

absl::Status BpeModel::TakeMerges(const nlohmann::json& json) {
  ASSIGN_OR_RETURN(const nlohmann::json* merges, ArrayField(json, "merges"));
  merges_.reserve(merges->size());
  int32_t rank = 0;
  for (const nlohmann::json& merge : *merges) {
    ASSIGN_OR_RETURN(const auto sides, SidesOf(merge));
    const auto left = vocabulary_.find(sides.first), right = vocabulary_.find(sides.second);
    const auto both = vocabulary_.find(absl::StrCat(sides.first, sides.second));
    const auto end = vocabulary_.end();
    if (left == end || right == end || both == end) {
      return absl::InvalidArgumentError(absl::StrCat("the merge of '", sides.first.substr(0, 80),
                                                     "' and '", sides.second.substr(0, 80),
                                                     "' is not in the vocabulary"));
    }
    const uint64_t key =
        uint64_t{static_cast<uint32_t>(left->second)} << 32 | static_cast<uint32_t>(right->second);
    merges_[key] = {rank++, both->second};
  }
  return absl::OkStatus();
}

void BpeModel::TakeBytes() {
  byte_ids_.fill(-1);
  if (!byte_level_ && !byte_fallback_) return;
  for (int byte = 0; byte < 256; ++byte) {
    const auto it = vocabulary_.find(byte_level_ ? ByteLetter(static_cast<uint8_t>(byte))
                                                 : absl::StrFormat("<0x%02X>", byte));
    if (it != vocabulary_.end()) byte_ids_[static_cast<size_t>(byte)] = it->second;
  }
}

absl::StatusOr<BpeModel> BpeModel::FromJson(const nlohmann::json& json, bool byte_level) {
  if (!json.is_object()) return absl::InvalidArgumentError("'model' is not an object");
  RETURN_IF_ERROR(CheckType(json));
  RETURN_IF_ERROR(CheckOptions(json));
  BpeModel model;
  JsonKeys keys(json, "tokenizer.json", "model.");
  model.byte_level_ = byte_level;
  model.byte_fallback_ = keys.Flag("byte_fallback", false);
  model.fuse_unknown_ = keys.Flag("fuse_unk", false);
  model.ignore_merges_ = keys.Flag("ignore_merges", false);
  const std::string unknown = keys.Text("unk_token", "");
  RETURN_IF_ERROR(keys.status());
  RETURN_IF_ERROR(model.TakeVocabulary(json));
  RETURN_IF_ERROR(model.TakeMerges(json));
  model.TakeBytes();
  if (const auto it = model.vocabulary_.find(unknown); it != model.vocabulary_.end()) {
    model.unknown_ = it->second;
  }
  return model;
}

}  // namespace espalier
