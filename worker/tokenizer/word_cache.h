// WordCache: the ids of the words that a thread has met lately: most words of a text are met again
// and again. Used by bpe_tokenizer.cc. One for each thread.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace espalier {

class WordCache {
 public:
  static constexpr size_t kWordBytesMax = 22, kIdsMax = 8;

  // Of the tokenizer with the number `owner`, which is not 0.
  std::optional<absl::Span<const int32_t>> Find(uint32_t owner, absl::string_view word) const {
    const Entry& entry = entries_[Place(owner, word)];
    if (entry.owner != owner || entry.bytes != word.size() ||
        std::memcmp(entry.word.data(), word.data(), word.size()) != 0) {
      return std::nullopt;
    }
    return absl::MakeConstSpan(entry.ids.data(), entry.count);
  }

  // What is too long is not kept.
  void Keep(uint32_t owner, absl::string_view word, absl::Span<const int32_t> ids) {
    if (word.size() > kWordBytesMax || ids.size() > kIdsMax) return;
    Entry& entry = entries_[Place(owner, word)];
    entry.owner = owner;
    entry.bytes = static_cast<uint8_t>(word.size());
    entry.count = static_cast<uint8_t>(ids.size());
    std::copy(word.begin(), word.end(), entry.word.begin());
    std::copy(ids.begin(), ids.end(), entry.ids.begin());
  }

 private:
  struct Entry {  // a line of the processor's cache
    uint32_t owner = 0;
    uint8_t bytes = 0, count = 0;
    std::array<char, kWordBytesMax> word{};
    std::array<int32_t, kIdsMax> ids{};
  };
  static constexpr size_t kEntries = size_t{1} << 14;  // 1 MiB

  static size_t Place(uint32_t owner, absl::string_view word) {
    uint64_t hash = owner + 0x9e3779b97f4a7c15ULL * word.size();
    while (!word.empty()) {
      uint64_t part = 0;
      const size_t size = std::min<size_t>(8, word.size());
      std::memcpy(&part, word.data(), size);
      hash = (hash ^ part) * 0x9fb21c651e98df25ULL;
      hash ^= hash >> 29;
      word.remove_prefix(size);
    }
    return static_cast<size_t>(hash ^ (hash >> 32)) % kEntries;
  }

  std::vector<Entry> entries_ = std::vector<Entry>(kEntries);
};

}  // namespace espalier
