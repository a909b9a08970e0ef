#include "worker/tokenizer/tokenizer.h"

#include "common/base/status_macros.h"
#include "worker/tokenizer/unicode_text.h"

namespace espalier {
namespace {

// Appends a run of byte tokens: all of it, or one U+FFFD for each byte when it is not UTF-8.
void AppendBytes(std::string& bytes, std::string& text) {
  if (IsUtf8(bytes)) {
    text += bytes;
  } else {
    for (size_t i = 0; i < bytes.size(); ++i) text += kReplacementCharacter;
  }
  bytes.clear();
}

}  // namespace

absl::StatusOr<std::string> Tokenizer::Decode(absl::Span<const int32_t> ids,
                                              DecodeOptions options) const {
  std::string text;
  for (const int32_t id : ids) {
    ASSIGN_OR_RETURN(const absl::string_view piece, Piece(id));
    if (options.special_tokens || !IsSpecial(id)) text.append(piece.data(), piece.size());
  }
  if (DropsFirstSpace() && !text.empty() && text.front() == ' ') text.erase(0, 1);
  return text;
}

absl::StatusOr<std::string> Tokenizer::DecodeText(absl::Span<const int32_t> ids,
                                                  DecodeOptions options) const {
  std::string text, bytes;
  for (const int32_t id : ids) {
    ASSIGN_OR_RETURN(const absl::string_view piece, Piece(id));
    if (!options.special_tokens && IsSpecial(id)) continue;
    if (!(KindOf(id) == TokenKind::kByteFallback)) AppendBytes(bytes, text);
    std::string& part = (KindOf(id) == TokenKind::kByteFallback) ? bytes : text;
    part.append(piece.data(), piece.size());
  }
  AppendBytes(bytes, text);
  if (DropsFirstSpace() && !text.empty() && text.front() == ' ') text.erase(0, 1);
  return WithReplacements(text);
}

}  // namespace espalier
