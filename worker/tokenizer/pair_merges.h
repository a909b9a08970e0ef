// PairMerges: counts of the pairs of neighbours in a set of words, kept up to date while pairs are
// merged. Used by bpe_trainer.cc. One thread.
#pragma once

#include <cstdint>
#include <optional>
#include <queue>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"

namespace espalier {

class PairMerges {
 public:
  struct Word {
    std::vector<int32_t> symbols;
    int64_t count = 0;
  };
  struct Pair {
    int32_t left = 0, right = 0;
    int64_t count = 0;
  };
  explicit PairMerges(std::vector<Word> words);

  // The commonest pair; of equally common ones the one with the smallest ids.
  std::optional<Pair> Commonest();
  // Makes every such pair the symbol `id`.
  void Merge(const Pair& pair, int32_t id);

 private:
  static uint64_t Key(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }
  // Adds (or takes, by `sign`) the pairs of a word; those with `fresh` come into words_of_.
  void Count(uint32_t word, int64_t sign, int32_t fresh);

  struct Entry {
    int64_t count;
    uint64_t key;
    bool operator<(const Entry& other) const {  // the first one is on top of the heap
      return count != other.count ? count < other.count : key > other.key;
    }
  };
  static constexpr int32_t kAll = -1;

  std::vector<Word> words_;
  absl::flat_hash_map<uint64_t, int64_t> counts_;
  absl::flat_hash_map<uint64_t, std::vector<uint32_t>> words_of_;  // where a pair was met
  absl::flat_hash_set<uint64_t> fresh_;                            // pairs of a merge
  std::priority_queue<Entry> heap_;  // counts as they were; of a pair, never less than it is
};

}  // namespace espalier
