// tokenizer.json, and the tokenizer.model of SentencePiece.
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "tests/fuzz/damage.h"
#include "tests/fuzz/target.h"
#include "worker/tokenizer/gguf_vocabulary.h"
#include "worker/tokenizer/open_tokenizer.h"
#include "worker/tokenizer/sentencepiece_model.h"
#include "worker/tokenizer/stream_decoder.h"

namespace espalier {
namespace {

constexpr absl::string_view kTexts[] = {
    "Hello, world! I'll be 12345 years  old.\n\n",
    "naïve café 你好 🚀 e\u0301 <|begin_of_text|><|eot_id|> <s></s>▁\u3000",
    "\xff\xfe\xe2\x82 broken \xf0\x9f",
    "",
    " ",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"};
constexpr int64_t kGgufIdsMost = 4096;

std::string CheckIds(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  for (const int32_t id : ids) {
    if (id < 0 || id >= tokenizer.vocab_size()) return absl::StrCat("id ", id, " is none");
  }
  if (!tokenizer.DecodeText(ids, {.special_tokens = true}).ok()) return "its ids have no text";
  StreamDecoder decoder(tokenizer);
  for (const int32_t id : ids) {
    if (!decoder.Append(id).ok()) return "its ids have no text, one by one";
  }
  decoder.Finish();
  return "";
}

// Whatever the tokenizer is, it can be used.
std::string Use(const Tokenizer& tokenizer) {
  for (const absl::string_view text : kTexts) {
    std::vector<int32_t> ids;
    const absl::Status encoded =
        tokenizer.Encode(text, ids, {.special_tokens = true, .frame = true});
    std::string broken = encoded.ok() ? CheckIds(tokenizer, ids) : BrokenBy(encoded);
    if (!broken.empty()) return broken;
  }
  if (tokenizer.vocab_size() > kGgufIdsMost) return "";
  return BrokenBy(MakeGgufVocabulary(tokenizer, tokenizer.vocab_size() + 1, std::nullopt).status());
}

std::string CheckTokenizer(absl::string_view input) {
  const auto opened = TokenizerFromJson(input);
  return opened.ok() ? Use(**opened) : BrokenBy(opened.status());
}

// The first tokens of a vocabulary will do: the reader has one rule for all.
std::string Shortened(const std::string& text) {
  constexpr size_t kTokens = 400, kMerges = 150;
  auto json = nlohmann::ordered_json::parse(text);
  auto& model = json["model"];
  nlohmann::ordered_json vocabulary;
  for (const auto& [token, id] : model["vocab"].items()) {
    if (vocabulary.size() < kTokens) vocabulary[token] = id;
  }
  model["vocab"] = vocabulary;
  auto merges = nlohmann::ordered_json::array();
  for (const auto& merge : model["merges"]) {
    const std::string both = merge.is_string()
                                 ? merge.get<std::string>()
                                 : merge[0].get<std::string>() + " " + merge[1].get<std::string>();
    const size_t space = both.find(' ');
    const std::string left = both.substr(0, space), right = both.substr(space + 1);
    if (merges.size() < kMerges && vocabulary.contains(left) && vocabulary.contains(right) &&
        vocabulary.contains(left + right)) {
      merges.push_back(merge);
    }
  }
  model["merges"] = merges;
  return json.dump();
}

std::vector<std::string> TokenizerSeeds() {
  std::vector<std::string> seeds;
  for (const char* name : {"gemma", "gpt2-tiny", "llama-tiny", "llama2", "mistral", "qwen2-tiny",
                           "smollm2-tiny", "unk-fused", "unk-metaspace"}) {
    seeds.push_back(Shortened(TestData(absl::StrCat("tokenizers/", name, "/tokenizer.json"))));
  }
  seeds.push_back(TestData("models/quickstart/tokenizer.json"));
  return seeds;
}

std::string DamageTokenizer(const std::string& input, std::mt19937_64& random) {
  static constexpr absl::string_view kWords[] = {"Sequence",
                                                 "ByteLevel",
                                                 "Split",
                                                 "Replace",
                                                 "NFC",
                                                 "NFKC",
                                                 "NFD",
                                                 "Lowercase",
                                                 "Metaspace",
                                                 "Strip",
                                                 "Prepend",
                                                 "Isolated",
                                                 "Removed",
                                                 "MergedWithNext",
                                                 "Contiguous",
                                                 "Digits",
                                                 "Fuse",
                                                 "ByteFallback",
                                                 "TemplateProcessing",
                                                 "Regex",
                                                 "String",
                                                 "BPE",
                                                 "Ġ",
                                                 "▁",
                                                 "<0x0A>",
                                                 "(",
                                                 "[",
                                                 "\\s",
                                                 "\\p{L}+",
                                                 "(?i:'s)|[^\\r\\n]+",
                                                 "(a+)+$",
                                                 "(?=",
                                                 "\\1",
                                                 "type",
                                                 "pattern",
                                                 "content",
                                                 "normalizers",
                                                 "pretokenizers",
                                                 "decoders",
                                                 "model",
                                                 "vocab",
                                                 "merges",
                                                 "added_tokens",
                                                 "unk_token",
                                                 "byte_fallback",
                                                 "prepend_scheme",
                                                 "split",
                                                 "behavior"};
  return DamagedJson(input, kWords, random);
}

std::string CheckSentencePiece(absl::string_view input) {
  const auto text = JsonOfSentencePiece(input, {});
  if (!text.ok()) return BrokenBy(text.status());
  const auto opened = TokenizerFromJson(*text);
  return opened.ok() ? Use(**opened) : BrokenBy(opened.status());
}

std::vector<std::string> SentencePieceSeeds() {
  return {TestData("sentencepiece/tokenizer.model")};
}

std::string DamageSentencePiece(const std::string& input, std::mt19937_64& random) {
  static constexpr absl::string_view kWords[] = {
      "\n", "\x12", "\x1a", "\x80", "\xff\xff\xff\xff\xff\xff\xff\xff\xff", "▁", "<0x41>"};
  return DamagedText(input, kWords, random);
}

}  // namespace

FuzzTarget TokenizerTarget() {
  return {"tokenizer", CheckTokenizer, TokenizerSeeds, DamageTokenizer, 800};
}
FuzzTarget SentencePieceTarget() {
  return {"sentencepiece", CheckSentencePiece, SentencePieceSeeds, DamageSentencePiece, 300};
}

}  // namespace espalier
