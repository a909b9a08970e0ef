// Reads the tokenizer.model of SentencePiece (Llama 2, Mistral, Gemma) as the tokenizer.json that
// transformers makes of it. Used by open_tokenizer.cc. Pure: any thread.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace espalier {

struct SentencePieceOptions {
  bool add_begin = true;  // frame texts with the token that begins one
  bool add_end = false;
  // Of models that put a mark before texts. Legacy: before the text behind an added token too.
  bool legacy = true;
  bool add_prefix_space = true;  // false: before none
};

// INVALID_ARGUMENT for bytes that are no such model; UNIMPLEMENTED names what is not supported: the
// kinds unigram, word and char, and rules of normalization.
absl::StatusOr<std::string> JsonOfSentencePiece(absl::string_view model,
                                                SentencePieceOptions options);

}  // namespace espalier
