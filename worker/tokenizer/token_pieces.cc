#include "worker/tokenizer/token_pieces.h"

#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/status_macros.h"
#include "worker/formats/json_fields.h"
#include "worker/tokenizer/byte_letters.h"

namespace espalier {
namespace {

constexpr int kDepthMax = 8;

// The byte that "<0xE2>" names.
std::optional<char> FallbackByte(absl::string_view token) {
  uint32_t byte = 0;
  if (token.size() != 6 || !absl::StartsWith(token, "<0x") || token.back() != '>' ||
      !absl::SimpleHexAtoi(token.substr(3, 2), &byte)) {
    return std::nullopt;
  }
  return static_cast<char>(byte);
}

absl::Status Unknown(absl::string_view what) {
  return absl::UnimplementedError(
      absl::StrCat("the decoder ", what.substr(0, 120), " is not supported; supported: Sequence, ",
                   "ByteLevel, ByteFallback, Fuse, Metaspace, Replace of a String by none longer, "
                   "Strip of one space at the beginning"));
}

}  // namespace

absl::Status TokenPieces::TakeDecoder(const nlohmann::json& json, int depth) {
  if (!json.is_object() || depth > kDepthMax) {
    return absl::InvalidArgumentError("a decoder is not an object");
  }
  ASSIGN_OR_RETURN(const std::string type, StringField(json, "type"));
  if (type == "ByteLevel") {
    byte_level_ = true;
  } else if (type == "ByteFallback") {
    byte_fallback_ = true;
  } else if (type == "Fuse") {
    // Pieces are put together without anything between them.
  } else if (type == "Strip") {
    const bool one_space = json.value("content", nlohmann::json()) == " " &&
                           json.value("start", nlohmann::json()) == 1 &&
                           json.value("stop", nlohmann::json()) == 0;
    if (!one_space) return Unknown(json.dump());
    drops_first_space_ = true;
  } else if (type == "Metaspace") {
    ASSIGN_OR_RETURN(const std::string mark, StringField(json, "replacement"));
    if (mark.empty()) return Unknown(json.dump());
    replacements_.emplace_back(mark, " ");
    // Files of old have add_prefix_space in place of the scheme.
    const bool never = json.value("prepend_scheme", nlohmann::json("always")) == "never" ||
                       json.value("add_prefix_space", nlohmann::json()) == false;
    drops_first_marks_ = !never;
    mark_ = mark;
  } else if (type == "Replace") {
    ASSIGN_OR_RETURN(const nlohmann::json* pattern, ObjectField(json, "pattern"));
    if (!pattern->contains("String")) return Unknown(json.dump());
    ASSIGN_OR_RETURN(std::string from, StringField(*pattern, "String"));
    ASSIGN_OR_RETURN(std::string to, StringField(json, "content"));
    // Pieces may not grow with each of many.
    if (from.empty() || to.size() > from.size()) return Unknown(json.dump());
    replacements_.emplace_back(std::move(from), std::move(to));
  } else if (type == "Sequence") {
    ASSIGN_OR_RETURN(const nlohmann::json* list, ArrayField(json, "decoders"));
    for (const nlohmann::json& one : *list) RETURN_IF_ERROR(TakeDecoder(one, depth + 1));
  } else {
    return Unknown(type);
  }
  return absl::OkStatus();
}

absl::StatusOr<TokenPieces> TokenPieces::FromJson(const nlohmann::json& decoder) {
  TokenPieces pieces;
  if (decoder.is_null()) return Unknown("null");
  RETURN_IF_ERROR(pieces.TakeDecoder(decoder, 0));
  return pieces;
}

void TokenPieces::Add(int32_t id, absl::string_view token) {
  const auto index = static_cast<size_t>(id);
  if (index >= pieces_.size()) {
    pieces_.resize(index + 1);
    is_byte_.resize(index + 1);
  }
  std::string text(token);
  is_byte_[index] = false;
  if (byte_level_) {
    if (auto bytes = BytesOfLetters(token)) text = *std::move(bytes);
  }
  for (const auto& [from, to] : replacements_) text = absl::StrReplaceAll(text, {{from, to}});
  if (byte_fallback_) {
    if (const auto byte = FallbackByte(token)) {
      text.assign(1, *byte);
      is_byte_[index] = true;
    }
  }
  pieces_[index] = std::move(text);
  first_pieces_.erase(id);
  if (!drops_first_marks_ || !absl::StrContains(token, ' ')) return;
  first_pieces_[id] = absl::StrReplaceAll(token, {{mark_, ""}});
}

std::string TokenPieces::first_piece(int32_t id) const {
  const absl::string_view text = piece(id);
  if (!drops_first_marks_) return std::string(text);
  const auto it = first_pieces_.find(id);
  return it != first_pieces_.end() ? it->second : absl::StrReplaceAll(text, {{" ", ""}});
}

}  // namespace espalier
