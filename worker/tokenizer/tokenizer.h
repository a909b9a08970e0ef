// Tokenizer: text to token ids and back, with the tokenizer.json that makes other tools do the
// same. Used by worker/, worker/data and tests. Immutable: any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace espalier {

// What is before a text that is encoded: some tokenizers put a mark before words there.
enum class TextStart {
  kBegins,      // nothing: the text begins here
  kAfterToken,  // a token that was spelled out
  kContinues,   // text: what is encoded goes on where that ended, without a mark
};

struct EncodeOptions {
  // Special tokens that are spelled out in the text are tokens; else they are text, as is right
  // for text of unknown origin.
  bool special_tokens = false;
  // Add what the tokenizer puts around every text, such as Llama's <|begin_of_text|>.
  bool frame = false;
  TextStart start = TextStart::kBegins;
};

struct TextFrame {
  std::vector<int32_t> before, behind;
};

struct DecodeOptions {
  bool special_tokens = false;  // spell them out; else they are left out
};

enum class TokenKind {
  kText,
  kSpecial,
  kByteFallback,  // a byte of a character that has no token of its own (`<0xE2>`)
};

class Tokenizer {
 public:
  // `kind` is a literal.
  explicit Tokenizer(absl::string_view kind, bool drops_first_space = false)
      : kind_(kind), drops_first_space_(drops_first_space) {}
  virtual ~Tokenizer() = default;
  // Short name written to manifests: "byte" or "bpe".
  absl::string_view kind() const { return kind_; }
  // One more than the largest id.
  virtual int64_t vocab_size() const = 0;
  // The id that ends every document.
  virtual int32_t end_of_text() const = 0;
  // The id of a token by its spelling in tokenizer.json ("<|im_end|>").
  virtual std::optional<int32_t> IdOf(absl::string_view token) const = 0;
  virtual TokenKind KindOf(int32_t id) const = 0;
  bool IsSpecial(int32_t id) const { return KindOf(id) == TokenKind::kSpecial; }

  // Appends the ids of `text`, which is any bytes. INVALID_ARGUMENT names what the vocabulary has
  // no token for.
  virtual absl::Status Encode(absl::string_view text, std::vector<int32_t>& ids,
                              EncodeOptions options = {}) const = 0;
  // The ids around every text that EncodeOptions::frame adds.
  absl::StatusOr<TextFrame> Frame() const;
  // The ids of what a model is asked to go on with, as transformers has them: special tokens that
  // are spelled out are tokens, and what is put before every text is there once, spelled out or
  // not; but nothing is behind it.
  absl::StatusOr<std::vector<int32_t>> EncodePrompt(absl::string_view text) const;
  // The bytes that an id stands for, also of a special token, which need not be whole characters.
  // INVALID_ARGUMENT names an id outside the vocabulary; an id that has no token stands for
  // nothing. Valid as long as the tokenizer.
  virtual absl::StatusOr<absl::string_view> Piece(int32_t id) const = 0;
  // The bytes of the id that a text begins with, where they are others: marks before texts are not
  // of the text.
  virtual absl::StatusOr<std::string> FirstPiece(int32_t id) const;
  // The space that such a tokenizer puts before every text is not of the text.
  bool DropsFirstSpace() const { return drops_first_space_; }

  // The pieces together: the bytes that were encoded.
  absl::StatusOr<std::string> Decode(absl::Span<const int32_t> ids,
                                     DecodeOptions options = {}) const;
  // The same as UTF-8: what is none becomes U+FFFD, as Hugging Face's decode() does it.
  absl::StatusOr<std::string> DecodeText(absl::Span<const int32_t> ids,
                                         DecodeOptions options = {}) const;

  // Contents of tokenizer.json and tokenizer_config.json, the same bytes every time.
  virtual std::string Json() const = 0;
  virtual std::string ConfigJson() const = 0;

 private:
  const absl::string_view kind_;
  const bool drops_first_space_;
};

// One token per byte (id = byte) and <|endoftext|> (id 256). Any bytes survive the round trip.
// `config_json`: the tokenizer_config.json beside it, with a chat template perhaps; empty: made up.
std::unique_ptr<Tokenizer> MakeByteTokenizer(std::string config_json = {});

}  // namespace espalier
