// Damage of a structure: to JSON, a value elsewhere, missing, doubled, of another type or deeply
// nested; to text, words of its language. What libFuzzer's changes of bytes seldom hit. Used by
// tests/fuzz. One thread.
#pragma once

#include <random>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace espalier {

using FuzzWords = absl::Span<const absl::string_view>;

// One to three changes to a JSON text, or to what is no JSON as DamagedText. `words` are texts that
// the reader knows.
std::string DamagedJson(const std::string& text, FuzzWords words, std::mt19937_64& random);

// As Mutated (tests/worker/support/mutations.h), and now and then a word hundreds of times.
std::string DamagedText(const std::string& text, FuzzWords words, std::mt19937_64& random);

// The bytes of a safetensors file with its header damaged, and its length field corrected.
std::string DamagedSafetensors(const std::string& file, std::mt19937_64& random);

}  // namespace espalier
