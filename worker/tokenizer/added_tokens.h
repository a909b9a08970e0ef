// AddedTokens: the tokens that are looked for in a text before it is cut into words, `added_tokens`
// of tokenizer.json: special ones such as <|im_end|>, and others. Used by bpe_tokenizer.h.
// Immutable: any thread.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/tokenizer/normalizer.h"

namespace espalier {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool special = false;
  bool single_word = false;  // not within a word
  bool lstrip = false;       // takes the white space before it along
  bool rstrip = false;       // and that behind it
  bool normalized = false;   // looked for after normalization
};

class AddedTokens {
 public:
  static absl::StatusOr<AddedTokens> FromJson(const nlohmann::json& json,
                                              const Normalizer& normalizer);
  const std::vector<AddedToken>& all() const { return tokens_; }

  // A part of a text: a token, or what lies between tokens.
  struct Part {
    absl::string_view text;
    const AddedToken* token = nullptr;  // nullptr: none
  };
  using Visit = absl::FunctionRef<absl::Status(const Part&)>;
  // The parts of a text before (`kRaw`) or after normalization, in order; each of the tokens that
  // are looked for there, leftmost and then longest. `special`: special tokens too.
  enum class Stage { kRaw, kNormalized };
  absl::Status ForEachPart(absl::string_view text, Stage stage, bool special, Visit visit) const;

 private:
  // The tokens of a stage as a tree of bytes.
  struct Tree {
    bool empty() const { return next.empty(); }
    void Add(absl::string_view content, int32_t token);
    struct Found {
      int32_t token = -1;  // none
      size_t bytes = 0;
    };
    // The longest token that `text` begins with.
    Found Longest(absl::string_view text) const;

    std::array<bool, 256> begins{};
    absl::flat_hash_map<uint64_t, uint32_t> next;  // (node << 8 | byte) -> node
    std::vector<int32_t> token_at{-1};             // of a node
  };

  std::vector<AddedToken> tokens_;
  Tree raw_, normalized_;
};

}  // namespace espalier
