// BpeTrainer: a byte-level BPE tokenizer learnt from text: the commonest pair of neighbours becomes
// a token, again and again. Used by worker/data. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/tokenizer/pre_tokenizer.h"

namespace espalier {

struct BpeTrainerOptions {
  int64_t vocab_size = 8192;  // with the 256 bytes and the special tokens; at most 2^20
  // The first one ends documents. Each gets an id before all others.
  std::vector<std::string> special_tokens = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
  int64_t min_count = 2;  // pairs that are met less often are not merged
};

class BpeTrainer {
 public:
  // INVALID_ARGUMENT for options that cannot be.
  static absl::StatusOr<BpeTrainer> Create(BpeTrainerOptions options);

  // Counts the words of a text. Memory grows with the number of different words.
  absl::Status Add(absl::string_view text);

  struct Trained {
    std::string json;         // tokenizer.json
    std::string config_json;  // tokenizer_config.json
    int64_t vocab_size = 0;   // less than asked when the text has no more pairs
  };
  // The same words give the same tokenizer, in whatever order they came. `progress` is told how
  // many tokens there are now and then. INVALID_ARGUMENT when no text was added.
  absl::StatusOr<Trained> Train(const std::function<void(int64_t)>& progress = {}) const;

 private:
  BpeTrainer(BpeTrainerOptions options, PreTokenizer pre_tokenizer);

  BpeTrainerOptions options_;
  PreTokenizer pre_tokenizer_;
  absl::flat_hash_map<std::string, int64_t> words_;  // how often each is met
};

}  // namespace espalier
