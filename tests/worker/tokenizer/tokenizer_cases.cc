#include "tests/worker/tokenizer/tokenizer_cases.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace espalier {
namespace {

constexpr char kFolder[] = ESPALIER_SOURCE_DIR "/tests/data/tokenizers/";

constexpr char kSentencePiece[] = ESPALIER_SOURCE_DIR "/tests/data/sentencepiece/";

nlohmann::json ReadJson(const std::string& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file);
}

}  // namespace

std::vector<std::string> TokenizerNames() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    if (entry.is_directory()) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

nlohmann::json TokenizerJson(const std::string& name) {
  const std::string folder = kFolder + name;
  const std::string patch_file = folder + "/patch.json";
  if (!std::filesystem::exists(patch_file)) return ReadJson(folder + "/tokenizer.json");
  const nlohmann::json patch = ReadJson(patch_file);
  nlohmann::json json = TokenizerJson(patch.at("of").get<std::string>());
  json.merge_patch(patch.at("patch"));
  return json;
}

std::string SentencePieceFile() {
  std::ifstream file(std::string(kSentencePiece) + "tokenizer.model", std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<TokenizerCase> SentencePieceCases() {
  std::vector<TokenizerCase> cases;
  for (const nlohmann::json& one : ReadJson(std::string(kSentencePiece) + "cases.json")) {
    cases.push_back({one.at("text"), one.at("ids"), "", ""});
  }
  return cases;
}

std::vector<TokenizerCase> TokenizerCases(const std::string& name) {
  std::vector<TokenizerCase> cases;
  for (const nlohmann::json& one : ReadJson(kFolder + name + "/cases.json")) {
    cases.push_back({one.at("text"), one.at("ids"), one.at("decoded"),
                     one.value("decoded_no_special", std::string())});
  }
  return cases;
}

}  // namespace espalier
