// What tokenizers need of Unicode: its four normal forms, classes of characters, and UTF-8 that may
// be none. Used by worker/tokenizer and worker/chat. Pure: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace espalier {

inline constexpr char kReplacementCharacter[] = "\xef\xbf\xbd";  // U+FFFD
inline constexpr int32_t kReplacementCodePoint = 0xfffd;

bool IsUtf8(absl::string_view text);

// Every maximal part of an ill-formed sequence as one U+FFFD (Unicode 15, U+FFFD Substitution), as
// Rust's and Python's decoders do it.
std::string WithReplacements(absl::string_view text);

// How many bytes at the end may be the beginning of a character: 0 to 3.
size_t UnfinishedBytes(absl::string_view text);

// The code point that `text`, which is not empty, begins or ends with; `bytes` is its length.
// U+FFFD with one byte stands for a byte that is not UTF-8.
struct CodePoint {
  int32_t value = 0;
  size_t bytes = 0;
};
CodePoint FirstCodePoint(absl::string_view text);
CodePoint LastCodePoint(absl::string_view text);

enum class NormalForm { kC, kD, kKC, kKD };
// In time n log n for any text. Bytes that are not UTF-8 stay as they are.
std::string Normalized(absl::string_view text, NormalForm form);

// Every character by itself: what becomes two in another case stays.
std::string Upper(absl::string_view text);
std::string Lower(absl::string_view text);

bool IsSpace(int32_t code_point);  // the property White_Space
bool IsWord(int32_t code_point);   // letters, marks, digits and joining punctuation: \w

}  // namespace espalier
