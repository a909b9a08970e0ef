#include "worker/tokenizer/tokenizer.h"

#include <algorithm>
#include <utility>

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

// `first`: no token of the text had any bytes yet.
absl::StatusOr<std::string> PieceOf(const Tokenizer& tokenizer, int32_t id, bool& first) {
  ASSIGN_OR_RETURN(const absl::string_view piece, tokenizer.Piece(id));
  if (piece.empty() || !std::exchange(first, false)) return std::string(piece);
  return tokenizer.FirstPiece(id);
}

}  // namespace

absl::StatusOr<TextFrame> Tokenizer::Frame() const {
  std::vector<int32_t> bare, framed;
  RETURN_IF_ERROR(Encode("a", bare));
  RETURN_IF_ERROR(Encode("a", framed, {.frame = true}));
  const auto text = std::search(framed.begin(), framed.end(), bare.begin(), bare.end());
  const auto behind =
      std::min<std::ptrdiff_t>(static_cast<std::ptrdiff_t>(bare.size()), framed.end() - text);
  return TextFrame{.before = {framed.begin(), text}, .behind = {text + behind, framed.end()}};
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::EncodePrompt(absl::string_view text) const {
  ASSIGN_OR_RETURN(const TextFrame frame, Frame());
  std::vector<int32_t> ids;
  RETURN_IF_ERROR(Encode(text, ids, {.special_tokens = true}));
  const bool spelled = ids.size() >= frame.before.size() &&
                       std::equal(frame.before.begin(), frame.before.end(), ids.begin());
  if (!spelled) ids.insert(ids.begin(), frame.before.begin(), frame.before.end());
  return ids;
}

absl::StatusOr<std::string> Tokenizer::FirstPiece(int32_t id) const {
  ASSIGN_OR_RETURN(const absl::string_view piece, Piece(id));
  return std::string(piece);
}

absl::StatusOr<std::string> Tokenizer::Decode(absl::Span<const int32_t> ids,
                                              DecodeOptions options) const {
  std::string text;
  bool first = true;
  for (const int32_t id : ids) {
    if (!options.special_tokens && IsSpecial(id)) continue;
    ASSIGN_OR_RETURN(const std::string piece, PieceOf(*this, id, first));
    text += piece;
  }
  if (DropsFirstSpace() && !text.empty() && text.front() == ' ') text.erase(0, 1);
  return text;
}

absl::StatusOr<std::string> Tokenizer::DecodeText(absl::Span<const int32_t> ids,
                                                  DecodeOptions options) const {
  std::string text, bytes;
  bool first = true;
  for (const int32_t id : ids) {
    if (!options.special_tokens && IsSpecial(id)) continue;
    ASSIGN_OR_RETURN(const std::string piece, PieceOf(*this, id, first));
    if (!(KindOf(id) == TokenKind::kByteFallback)) AppendBytes(bytes, text);
    std::string& part = (KindOf(id) == TokenKind::kByteFallback) ? bytes : text;
    part += piece;
  }
  AppendBytes(bytes, text);
  if (DropsFirstSpace() && !text.empty() && text.front() == ' ') text.erase(0, 1);
  return WithReplacements(text);
}

}  // namespace espalier
