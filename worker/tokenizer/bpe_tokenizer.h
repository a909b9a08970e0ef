// BpeTokenizer: byte-pair encoding as a tokenizer.json of Hugging Face describes it: GPT-2, Llama
// 3, Qwen, SmolLM2 and what is built like them. Used by open_tokenizer.cc.
// Immutable: any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/tokenizer/added_tokens.h"
#include "worker/tokenizer/bpe_model.h"
#include "worker/tokenizer/normalizer.h"
#include "worker/tokenizer/pre_tokenizer.h"
#include "worker/tokenizer/token_pieces.h"
#include "worker/tokenizer/tokenizer.h"

namespace espalier {

class BpeTokenizer final : public Tokenizer {
 public:
  // What a folder says besides tokenizer.json.
  struct Surroundings {
    std::string config_json;         // tokenizer_config.json; empty: made up
    std::string chat_template;       // of the one that is made up
    std::optional<std::string> end;  // the token that ends a document
    std::optional<int32_t> end_id;   // the same by its id, when `end` is not given
  };
  // `text`: contents of tokenizer.json, which `json` is. INVALID_ARGUMENT when no end is given and
  // the vocabulary has no token that is known to be one.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Open(std::string text,
                                                         const nlohmann::json& json,
                                                         Surroundings surroundings);

  int64_t vocab_size() const override { return pieces_.size(); }
  int32_t end_of_text() const override { return end_; }
  std::optional<int32_t> IdOf(absl::string_view token) const override;
  TokenKind KindOf(int32_t id) const override;
  absl::Status Encode(absl::string_view text, std::vector<int32_t>& ids,
                      EncodeOptions options) const override;
  absl::StatusOr<absl::string_view> Piece(int32_t id) const override;
  absl::StatusOr<std::string> FirstPiece(int32_t id) const override;
  std::string Json() const override { return json_; }
  std::string ConfigJson() const override { return config_json_; }

 private:
  BpeTokenizer(PreTokenizer pre_tokenizer, BpeModel model, TokenPieces pieces);

  absl::Status TakeTokens(const nlohmann::json& json);
  absl::Status TakeFrame(const nlohmann::json& json, int depth);
  absl::Status TakeEnd(const Surroundings& surroundings);
  absl::Status EncodeRaw(absl::string_view text, TextStart start, bool special,
                         std::vector<int32_t>& ids) const;
  absl::Status EncodeWords(absl::string_view text, TextStart start,
                           std::vector<int32_t>& ids) const;

  const uint32_t number_;  // of this among all tokenizers of the process
  std::string json_;
  std::string config_json_;
  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  BpeModel model_;
  TokenPieces pieces_;
  AddedTokens added_;
  std::vector<bool> special_;             // by id
  std::vector<int32_t> before_, behind_;  // what frames a text
  int32_t end_ = 0;
};

}  // namespace espalier
