// TokenPieces: the bytes that each token stands for, as `decoder` of tokenizer.json says. Used by
// bpe_tokenizer.h. Immutable: any thread.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace espalier {

class TokenPieces {
 public:
  // UNIMPLEMENTED names a decoder that is not known, and lists those that are.
  static absl::StatusOr<TokenPieces> FromJson(const nlohmann::json& decoder);

  void Add(int32_t id, absl::string_view token);

  int64_t size() const { return static_cast<int64_t>(pieces_.size()); }
  absl::string_view piece(int32_t id) const { return pieces_[static_cast<size_t>(id)]; }
  bool is_byte(int32_t id) const { return is_byte_[static_cast<size_t>(id)]; }
  // Of the token that a text begins with.
  std::string first_piece(int32_t id) const;
  bool drops_first_space() const { return drops_first_space_; }

 private:
  absl::Status TakeDecoder(const nlohmann::json& json, int depth);

  bool byte_level_ = false;     // tokens are spelled in ByteLetters
  bool byte_fallback_ = false;  // <0xE2> is a byte
  bool drops_first_space_ = false;
  bool drops_first_marks_ = false;  // all of the first token's, as Metaspace does
  std::string mark_;                // of Metaspace
  std::vector<std::pair<std::string, std::string>> replacements_;  // in every token, in order
  std::vector<std::string> pieces_;                                // by id
  std::vector<bool> is_byte_;
  std::map<int32_t, std::string> first_pieces_;  // where a space is no mark's
};

}  // namespace espalier
