#include "worker/tokenizer/bpe_model.h"

#include <algorithm>
#include <limits>
#include <queue>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/tokenizer/unicode_text.h"

namespace espalier {
namespace {

constexpr size_t kShortSymbols = 48;  // up to here looking at all pairs beats a heap
constexpr int32_t kNoMerge = std::numeric_limits<int32_t>::max();

uint64_t PairKey(int32_t left, int32_t right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

// A merge of the symbol at `at` with the next one, as it was when it was found.
struct Candidate {
  int32_t rank = 0;
  uint32_t at = 0;
  int32_t id = 0;
  uint32_t size = 0;                              // symbols of the word that both stand for
  bool operator<(const Candidate& other) const {  // the first one is on top of the heap
    return rank != other.rank ? rank > other.rank : at > other.at;
  }
};

}  // namespace

const BpeModel::Merge* BpeModel::Find(int32_t left, int32_t right) const {
  const auto it = merges_.find(PairKey(left, right));
  return it == merges_.end() ? nullptr : &it->second;
}

absl::Status BpeModel::AppendCharacter(absl::string_view character, bool after_unknown,
                                       bool& unknown, std::vector<int32_t>& symbols) const {
  unknown = false;
  if (const auto it = vocabulary_.find(character); it != vocabulary_.end()) {
    symbols.push_back(it->second);
    return absl::OkStatus();
  }
  const auto has_token = [&](char c) { return byte_ids_[static_cast<uint8_t>(c)] >= 0; };
  if (byte_fallback_ && std::all_of(character.begin(), character.end(), has_token)) {
    for (const char c : character) symbols.push_back(byte_ids_[static_cast<uint8_t>(c)]);
    return absl::OkStatus();
  }
  if (!unknown_) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the tokenizer has no token for '", character, "' (", absl::BytesToHexString(character),
        ") and none for what is unknown; leave such text out or use another tokenizer"));
  }
  unknown = true;
  if (!(fuse_unknown_ && after_unknown)) symbols.push_back(*unknown_);
  return absl::OkStatus();
}

absl::Status BpeModel::Symbols(absl::string_view word, std::vector<int32_t>& symbols) const {
  if (byte_level_) {
    for (const char c : word) {
      const int32_t id = byte_ids_[static_cast<uint8_t>(c)];
      if (id < 0 && !unknown_) {
        return absl::InvalidArgumentError(absl::StrCat(
            "the tokenizer has no token for the byte 0x", absl::BytesToHexString(std::string(1, c)),
            "; leave such text out or use another tokenizer"));
      }
      symbols.push_back(id < 0 ? *unknown_ : id);
    }
    return absl::OkStatus();
  }
  bool unknown = false;
  while (!word.empty()) {
    const size_t bytes = FirstCodePoint(word).bytes;
    RETURN_IF_ERROR(AppendCharacter(word.substr(0, bytes), unknown, unknown, symbols));
    word.remove_prefix(bytes);
  }
  return absl::OkStatus();
}

void BpeModel::MergeShort(std::vector<int32_t>& symbols) const {
  std::array<Merge, kShortSymbols> merges;  // of a symbol with the next one
  const auto look = [&](size_t i) {
    const Merge* merge = Find(symbols[i], symbols[i + 1]);
    merges[i] = merge == nullptr ? Merge{kNoMerge, 0} : *merge;
  };
  size_t size = symbols.size();
  for (size_t i = 0; i + 1 < size; ++i) look(i);
  while (size > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < size; ++i) {
      if (merges[i].rank < merges[best].rank) best = i;
    }
    if (merges[best].rank == kNoMerge) break;
    symbols[best] = merges[best].id;
    for (size_t i = best + 1; i + 1 < size; ++i) {
      symbols[i] = symbols[i + 1];
      merges[i] = merges[i + 1];
    }
    --size;
    if (best > 0) look(best - 1);
    if (best + 1 < size) look(best);
  }
  symbols.resize(size);
}

void BpeModel::MergeLong(std::vector<int32_t>& symbols) const {
  const auto count = static_cast<uint32_t>(symbols.size());
  // The symbols that are left form a list; a symbol stands for sizes[i] of the word's, from i on.
  std::vector<uint32_t> sizes(count, 1), before(count);
  for (uint32_t i = 0; i < count; ++i) before[i] = i - 1;
  std::priority_queue<Candidate> heap;
  const auto look = [&](uint32_t left) {
    const uint32_t right = left + sizes[left];
    if (right >= count) return;
    const Merge* merge = Find(symbols[left], symbols[right]);
    if (merge != nullptr) heap.push({merge->rank, left, merge->id, sizes[left] + sizes[right]});
  };
  for (uint32_t i = 0; i + 1 < count; ++i) look(i);
  while (!heap.empty()) {
    const Candidate top = heap.top();
    heap.pop();
    const uint32_t left = top.at, right = left + sizes[left];
    // Symbols only grow: the pair is the one that was found if it stands for as much as then.
    if (sizes[left] == 0 || right >= count || sizes[left] + sizes[right] != top.size) continue;
    symbols[left] = top.id;
    sizes[left] = top.size;
    sizes[right] = 0;
    if (left + top.size < count) before[left + top.size] = left;
    if (left > 0) look(before[left]);
    look(left);
  }
  size_t kept = 0;
  for (uint32_t i = 0; i < count; i += sizes[i]) symbols[kept++] = symbols[i];
  symbols.resize(kept);
}

absl::Status BpeModel::EncodeWord(absl::string_view word, std::vector<int32_t>& ids) const {
  if (ignore_merges_) {
    const auto& whole = byte_level_ ? words_ : vocabulary_;
    if (const auto it = whole.find(word); it != whole.end()) {
      ids.push_back(it->second);
      return absl::OkStatus();
    }
  }
  static thread_local std::vector<int32_t> symbols;
  symbols.clear();
  if (word.size() > std::numeric_limits<uint32_t>::max() / 2) {
    return absl::InvalidArgumentError("a word of over 2 GiB cannot be encoded");
  }
  RETURN_IF_ERROR(Symbols(word, symbols));
  if (symbols.size() <= kShortSymbols) {
    MergeShort(symbols);
  } else {
    MergeLong(symbols);
  }
  ids.insert(ids.end(), symbols.begin(), symbols.end());
  return absl::OkStatus();
}

}  // namespace espalier
