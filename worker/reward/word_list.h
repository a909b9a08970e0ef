// WordList: the words that a game of Wordle knows, from a file. Used by worker/reward, worker/task,
// worker/make_data_verb.cc and tests/bench/reward_bench.cc. Immutable: any thread.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/reward/wordle.h"

namespace espalier {

class WordList {
 public:
  // One word a line, or a CSV with a column "Word" (other columns are ignored; of one without such
  // a header the first counts); a byte order mark, blank lines and lines that begin with # are
  // passed over. Lines that are not five letters of one case are left out and counted, so that a
  // dictionary of a system will do. INVALID_ARGUMENT: none is left.
  static absl::StatusOr<WordList> Load(const std::string& path);
  // Sorted, each word once. INVALID_ARGUMENT: there is none.
  static absl::StatusOr<WordList> Of(std::vector<WordleWord> words);

  bool contains(WordleWord word) const;
  // Sorted, distinct, at least one.
  absl::Span<const WordleWord> words() const { return words_; }
  int64_t left_out() const { return left_out_; }

 private:
  explicit WordList(std::vector<WordleWord> words) : words_(std::move(words)) {}

  std::vector<WordleWord> words_;
  int64_t left_out_ = 0;
};

// The words that may be guessed, and those among which the secret is.
struct Vocabulary {
  // `secrets_path` may be empty: any word may be the secret. INVALID_ARGUMENT: a secret cannot be
  // guessed.
  static absl::StatusOr<Vocabulary> Load(const std::string& words_path,
                                         const std::string& secrets_path);
  WordList guesses;
  WordList secrets;
};

}  // namespace espalier
