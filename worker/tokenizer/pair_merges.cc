#include "worker/tokenizer/pair_merges.h"

#include <algorithm>

namespace espalier {

PairMerges::PairMerges(std::vector<Word> words) : words_(std::move(words)) {
  for (uint32_t i = 0; i < words_.size(); ++i) Count(i, 1, kAll);
  for (const auto& [key, count] : counts_) heap_.push({count, key});
}

void PairMerges::Count(uint32_t word, int64_t sign, int32_t fresh) {
  const Word& in = words_[word];
  for (size_t i = 0; i + 1 < in.symbols.size(); ++i) {
    const int32_t left = in.symbols[i], right = in.symbols[i + 1];
    const uint64_t key = Key(left, right);
    counts_[key] += sign * in.count;
    if (sign < 0 || (fresh != kAll && left != fresh && right != fresh)) continue;
    std::vector<uint32_t>& words = words_of_[key];
    if (words.empty() || words.back() != word) words.push_back(word);
  }
}

std::optional<PairMerges::Pair> PairMerges::Commonest() {
  while (!heap_.empty()) {
    const Entry top = heap_.top();
    const int64_t count = counts_[top.key];
    if (count == top.count && count > 0) {
      return Pair{static_cast<int32_t>(top.key >> 32), static_cast<int32_t>(top.key & 0xffffffff),
                  count};
    }
    heap_.pop();
    if (count > 0 && count < top.count) heap_.push({count, top.key});
  }
  return std::nullopt;
}

void PairMerges::Merge(const Pair& pair, int32_t id) {
  const auto found = words_of_.find(Key(pair.left, pair.right));
  if (found == words_of_.end()) return;
  std::vector<uint32_t> words = std::move(found->second);
  words_of_.erase(found);
  std::sort(words.begin(), words.end());
  words.erase(std::unique(words.begin(), words.end()), words.end());
  for (const uint32_t word : words) {
    Count(word, -1, kAll);
    std::vector<int32_t>& symbols = words_[word].symbols;
    size_t kept = 0;
    for (size_t i = 0; i < symbols.size(); ++i) {
      const bool both =
          i + 1 < symbols.size() && symbols[i] == pair.left && symbols[i + 1] == pair.right;
      symbols[kept++] = both ? id : symbols[i];
      if (both) ++i;
    }
    symbols.resize(kept);
    Count(word, 1, id);
  }
  // What became commoner is new: it has the new symbol.
  for (const uint32_t word : words) {
    const std::vector<int32_t>& symbols = words_[word].symbols;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      if (symbols[i] != id && symbols[i + 1] != id) continue;
      fresh_.insert(Key(symbols[i], symbols[i + 1]));
    }
  }
  for (const uint64_t key : fresh_) heap_.push({counts_[key], key});
  fresh_.clear();
}

}  // namespace espalier
