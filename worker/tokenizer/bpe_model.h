// BpeModel: the ids of a word by byte-pair encoding: neighbours are merged, those of the earliest
// learnt merge first, as long as there is one. `model` of tokenizer.json. Used by bpe_tokenizer.h.
// Immutable: any thread.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace espalier {

class BpeModel {
 public:
  // `byte_level`: words are bytes, and the vocabulary spells them in ByteLetters. UNIMPLEMENTED
  // names another kind of model, or an option that is not known.
  static absl::StatusOr<BpeModel> FromJson(const nlohmann::json& json, bool byte_level);

  // Appends the ids of a word, which is not empty. INVALID_ARGUMENT for a character that has no
  // token. Time n log n.
  absl::Status EncodeWord(absl::string_view word, std::vector<int32_t>& ids) const;

  // All tokens as tokenizer.json spells them.
  const absl::flat_hash_map<std::string, int32_t>& vocabulary() const { return vocabulary_; }
  bool byte_fallback() const { return byte_fallback_; }

 private:
  struct Merge {
    int32_t rank = 0;
    int32_t id = 0;  // of what they become
  };

  absl::Status TakeVocabulary(const nlohmann::json& json);
  absl::Status TakeMerges(const nlohmann::json& json);
  void TakeBytes();
  const Merge* Find(int32_t left, int32_t right) const;
  // The ids of a word before any merge.
  absl::Status Symbols(absl::string_view word, std::vector<int32_t>& symbols) const;
  absl::Status AppendCharacter(absl::string_view character, bool after_unknown, bool& unknown,
                               std::vector<int32_t>& symbols) const;
  void MergeShort(std::vector<int32_t>& symbols) const;
  void MergeLong(std::vector<int32_t>& symbols) const;

  bool byte_level_ = false;
  bool byte_fallback_ = false;  // characters without a token become bytes, <0xE2>
  bool fuse_unknown_ = false;   // neighbours that are unknown become one
  bool ignore_merges_ = false;  // a word that is a token is that token
  std::optional<int32_t> unknown_;
  std::array<int32_t, 256> byte_ids_{};  // of a byte (byte_level, byte_fallback); -1: none
  absl::flat_hash_map<std::string, int32_t> vocabulary_;
  absl::flat_hash_map<std::string, int32_t> words_;  // ignore_merges and byte_level: by bytes
  absl::flat_hash_map<uint64_t, Merge> merges_;      // by (left << 32 | right)
};

}  // namespace espalier
