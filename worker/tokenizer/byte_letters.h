// The printable characters that stand for bytes in the vocabularies of byte-level tokenizers, as
// GPT-2 has them. Used by byte_tokenizer.cc, bpe_model_json.cc, token_pieces.cc and bpe_trainer.cc.
// Pure: any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace espalier {

// UTF-8 of the character: the byte itself where it is printable Latin-1, else one from U+0100 on.
const std::string& ByteLetter(uint8_t byte);

std::string ByteLetters(absl::string_view bytes);

// The bytes that the characters stand for; nothing when one of them stands for none.
std::optional<std::string> BytesOfLetters(absl::string_view letters);

}  // namespace espalier
