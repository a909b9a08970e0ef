#include "worker/tokenizer/stream_decoder.h"

#include "absl/strings/match.h"
#include "common/base/status_macros.h"
#include "worker/tokenizer/unicode_text.h"

namespace espalier {

absl::StatusOr<std::string> StreamDecoder::Append(int32_t id) {
  ASSIGN_OR_RETURN(absl::string_view piece, tokenizer_.Piece(id));
  if (!options_.special_tokens && tokenizer_.IsSpecial(id)) return std::string();
  std::string begin;
  if (first_ && !piece.empty()) {
    ASSIGN_OR_RETURN(begin, tokenizer_.FirstPiece(id));
    piece = begin;
    if (tokenizer_.DropsFirstSpace() && absl::StartsWith(piece, " ")) piece.remove_prefix(1);
    first_ = false;
  }
  pending_.append(piece.data(), piece.size());
  const size_t whole = pending_.size() - UnfinishedBytes(pending_);
  std::string text = WithReplacements(absl::string_view(pending_).substr(0, whole));
  pending_.erase(0, whole);
  return text;
}

std::string StreamDecoder::Finish() {
  std::string text = WithReplacements(pending_);
  pending_.clear();
  return text;
}

}  // namespace espalier
