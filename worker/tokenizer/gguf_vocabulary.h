// What a GGUF file says of a tokenizer ("tokenizer.*"), so that llama.cpp cuts texts into the same
// ids. It knows two kinds: byte-level BPE behind expressions that it has by name (GPT-2, Llama 3,
// Qwen, SmolLM2, GPT-4o, Mistral Nemo, and the byte tokenizer here, which is one without merges),
// and SentencePiece's, whose merges go by the scores of tokens (Llama 2, Mistral, Gemma).
// Used by worker/state/export_gguf.cc. Pure: any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/formats/gguf.h"
#include "worker/tokenizer/tokenizer.h"

namespace espalier {

// Of a token, as llama.cpp numbers them.
enum class GgufTokenType : int32_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,      // special: text of unknown origin cannot make it
  kUserDefined = 4,  // found in texts before they are cut
  kUnused = 5,       // an id that has no token
  kByte = 6,
};

struct GgufVocabulary {
  GgufFacts facts;
  // What llama.cpp does otherwise, for people: sentences.
  std::vector<std::string> notes;
};

// `vocab_size`: of the model, whose ids beyond the tokenizer's are unused. `begin`: the id that
// begins texts, for a tokenizer that names none. UNIMPLEMENTED names what llama.cpp has no way to
// say: another expression, normalizer or frame, merges that no scores express, characters without
// a token; INVALID_ARGUMENT when the tokenizer has more ids than the model.
absl::StatusOr<GgufVocabulary> MakeGgufVocabulary(const Tokenizer& tokenizer, int64_t vocab_size,
                                                  std::optional<int64_t> begin);
// That of a model without a tokenizer, which takes and gives ids alone.
GgufVocabulary NoGgufVocabulary();

}  // namespace espalier
