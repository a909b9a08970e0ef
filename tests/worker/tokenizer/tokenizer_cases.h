// The tokenizers of tests/data, with what Hugging Face's libraries make of texts. Used
// by tests/worker/tokenizer. One thread.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace espalier {

struct TokenizerCase {
  std::string text;
  std::vector<int32_t> ids;        // framed, special tokens known
  std::string decoded;             // special tokens spelled out
  std::string decoded_no_special;  // and left out; empty when not recorded
};

// Names of folders, in order.
std::vector<std::string> TokenizerNames();
// Contents of a tokenizer.json.
nlohmann::json TokenizerJson(const std::string& name);
std::vector<TokenizerCase> TokenizerCases(const std::string& name);

// tests/data/sentencepiece: a tokenizer.model, and texts with their ids.
std::string SentencePieceFile();
std::vector<TokenizerCase> SentencePieceCases();

}  // namespace espalier
