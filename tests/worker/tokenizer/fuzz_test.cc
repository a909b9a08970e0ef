// Damaged tokenizer files: an error or a tokenizer, in time, and never a crash. For longer:
// ESPALIER_FUZZ_SECONDS=600 build-asan/tests/worker_tokenizer_tests --gtest_filter='Fuzz*'
#include <gtest/gtest.h>

#include "tests/worker/support/mutations.h"
#include "tests/worker/tokenizer/tokenizer_cases.h"
#include "worker/tokenizer/open_tokenizer.h"
#include "worker/tokenizer/sentencepiece_model.h"
#include "worker/tokenizer/stream_decoder.h"

namespace espalier {
namespace {

using nlohmann::json;

constexpr absl::string_view kTexts[] = {
    "Hello, world! I'll be 12345 years  old.\n\n",
    "naïve café 你好 🚀 e\u0301 <|begin_of_text|><|eot_id|> <s></s>▁\u3000",
    "\xff\xfe\xe2\x82 broken \xf0\x9f",
    "",
    " ",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"};

// Whatever the tokenizer is, it can be used.
void Use(const Tokenizer& tokenizer) {
  for (const absl::string_view text : kTexts) {
    std::vector<int32_t> ids;
    if (!tokenizer.Encode(text, ids, {.special_tokens = true, .frame = true}).ok()) continue;
    for (const int32_t id : ids) {
      ASSERT_GE(id, 0);
      ASSERT_LT(id, tokenizer.vocab_size());
    }
    ASSERT_TRUE(tokenizer.DecodeText(ids, {.special_tokens = true}).ok());
    StreamDecoder decoder(tokenizer);
    for (const int32_t id : ids) ASSERT_TRUE(decoder.Append(id).ok());
    decoder.Finish();
  }
}

// A value somewhere in the tree is replaced, moved or removed.
void Damage(json& root, std::mt19937_64& random) {
  json* at = &root;
  json* parent = nullptr;
  while (at->is_structured() && !at->empty() && (parent == nullptr || random() % 8 != 0)) {
    parent = at;
    // Large lists are alike: their first items do.
    auto it = at->begin();
    std::advance(it, static_cast<ptrdiff_t>(random() % std::min<size_t>(at->size(), 12)));
    at = &*it;
  }
  const json values[] = {nullptr,
                         true,
                         -1,
                         0,
                         3,
                         1e300,
                         uint64_t{1} << 63,
                         "",
                         "a",
                         "Ġ",
                         "\u0000",
                         "(",
                         "[",
                         "\\s",
                         "Sequence",
                         "ByteLevel",
                         "Split",
                         "Replace",
                         "NFKC",
                         "Metaspace",
                         "Strip",
                         "Isolated",
                         "Removed",
                         json::array(),
                         json::object(),
                         root.value("pre_tokenizer", json()),
                         root.value("normalizer", json()),
                         root.value("decoder", json())};
  if (at->is_string() && random() % 2 == 0) {
    *at = at->get<std::string>() + "a";
  } else {
    *at = values[random() % std::size(values)];
  }
}

TEST(Fuzz, DamagedTokenizerJson) {
  FuzzRounds rounds(300);
  const std::vector<std::string> names{"gpt2-added", "llama3-real", "qwen-added", "smollm2-tiny",
                                       "llama2",     "mistral",     "gemma"};
  std::vector<json> tokenizers;
  for (const std::string& name : names) tokenizers.push_back(TokenizerJson(name));
  while (rounds.Next()) {
    SCOPED_TRACE(rounds.seed());
    json tokenizer = tokenizers[rounds.random()() % tokenizers.size()];
    for (uint64_t left = rounds.random()() % 3 + 1; left > 0; --left) {
      if (tokenizer.is_object()) Damage(tokenizer, rounds.random());
    }
    const auto opened =
        TokenizerFromJson(tokenizer.dump(-1, ' ', false, json::error_handler_t::replace));
    if (opened.ok()) Use(**opened);
  }
}

TEST(Fuzz, DamagedTextOfTokenizerJson) {
  FuzzRounds rounds(200);
  const std::string text = TokenizerJson("llama2").dump();
  while (rounds.Next()) {
    SCOPED_TRACE(rounds.seed());
    const auto opened = TokenizerFromJson(
        Mutated(text, {"{", "[", "\"", "null", "1e999", "\\ud800"}, rounds.random()));
    if (opened.ok()) Use(**opened);
  }
}

TEST(Fuzz, DamagedSentencePieceModel) {
  FuzzRounds rounds(300);
  const std::string model = SentencePieceFile();
  while (rounds.Next()) {
    SCOPED_TRACE(rounds.seed());
    const auto text = JsonOfSentencePiece(
        Mutated(model, {"\n", "\xff\xff\xff\xff\xff\xff\xff\xff\xff", "\x80"}, rounds.random()),
        {});
    if (!text.ok()) continue;
    if (const auto opened = TokenizerFromJson(*text); opened.ok()) Use(**opened);
  }
}

}  // namespace
}  // namespace espalier
