// Tokenizer: text to token ids and back, with the tokenizer.json that makes other tools do the
// same. Used by worker/ and worker/data. Immutable: any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace espalier {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  // Short name written to manifests: "byte".
  virtual absl::string_view kind() const = 0;
  virtual int64_t vocab_size() const = 0;
  // The id that ends every document.
  virtual int32_t end_of_text() const = 0;
  // Appends the ids of `text`, which is any bytes. Special tokens spelled out in the text are text.
  virtual void Encode(absl::string_view text, std::vector<int32_t>& ids) const = 0;
  // The bytes of the ids; special tokens are left out. INVALID_ARGUMENT names an id outside the
  // vocabulary.
  virtual absl::StatusOr<std::string> Decode(absl::Span<const int32_t> ids) const = 0;
  // Contents of tokenizer.json and tokenizer_config.json, the same bytes every time.
  virtual std::string Json() const = 0;
  virtual std::string ConfigJson() const = 0;
};

// One token per byte (id = byte) and <|endoftext|> (id 256). Any bytes survive the round trip.
std::unique_ptr<Tokenizer> MakeByteTokenizer();

// The tokenizer of a folder, by its tokenizer.json. NOT_FOUND without one; UNIMPLEMENTED names the
// kind when it is not the byte tokenizer.
absl::StatusOr<std::unique_ptr<Tokenizer>> OpenTokenizer(const std::string& folder);
// The same from the contents of tokenizer.json.
absl::StatusOr<std::unique_ptr<Tokenizer>> TokenizerFromJson(absl::string_view json);

}  // namespace espalier
