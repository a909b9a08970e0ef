#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "worker/tokenizer/open_tokenizer.h"

namespace espalier {
namespace {

std::vector<int32_t> Encoded(const Tokenizer& tokenizer, absl::string_view text,
                             EncodeOptions options = {}) {
  std::vector<int32_t> ids;
  EXPECT_TRUE(tokenizer.Encode(text, ids, options).ok());
  return ids;
}

TEST(ByteTokenizer, AnyBytesSurviveTheRoundTrip) {
  const auto tokenizer = MakeByteTokenizer();
  std::string text = "Grüße, 世界\r\n<|endoftext|>";
  for (int byte = 0; byte < 256; ++byte) text.push_back(static_cast<char>(byte));
  const std::vector<int32_t> ids = Encoded(*tokenizer, text);
  EXPECT_EQ(ids.size(), text.size());
  EXPECT_EQ(*tokenizer->Decode(ids), text);
}

TEST(ByteTokenizer, EndOfTextIsLeftOutAndForeignIdsAreRefused) {
  const auto tokenizer = MakeByteTokenizer();
  EXPECT_EQ(*tokenizer->Decode({'a', tokenizer->end_of_text(), 'b'}), "ab");
  EXPECT_EQ(tokenizer->Decode({257}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(tokenizer->Decode({-1}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(tokenizer->vocab_size(), 257);
}

TEST(ByteTokenizer, TakesASpelledOutEndForItselfOnlyWhenAsked) {
  const auto tokenizer = MakeByteTokenizer();
  EXPECT_EQ(Encoded(*tokenizer, "a<|endoftext|>b", {.special_tokens = true}),
            (std::vector<int32_t>{'a', 256, 'b'}));
  EXPECT_EQ(Encoded(*tokenizer, "a<|endoftext|>b").size(), 15U);
  EXPECT_EQ(*tokenizer->Decode({'a', 256}, {.special_tokens = true}), "a<|endoftext|>");
}

// transformers reads it as a byte-level BPE without merges.
TEST(ByteTokenizer, JsonHasEveryByteOnceInItsPrintableForm) {
  const auto json = nlohmann::json::parse(MakeByteTokenizer()->Json());
  const auto& vocab = json["model"]["vocab"];
  ASSERT_EQ(vocab.size(), 257U);
  EXPECT_EQ(vocab["A"], 65);
  EXPECT_EQ(vocab["Ġ"], 32);   // space, in GPT-2's spelling
  EXPECT_EQ(vocab["Ċ"], 10);   // newline
  EXPECT_EQ(vocab["Ń"], 173);  // soft hyphen, the last byte that is moved
  EXPECT_EQ(vocab["ÿ"], 255);
  EXPECT_EQ(vocab["<|endoftext|>"], 256);
  EXPECT_EQ(json["model"]["merges"].size(), 0U);
}

TEST(ByteTokenizer, IsKnownByItsJsonInAnyLayout) {
  const std::string own = MakeByteTokenizer()->Json();
  auto json = nlohmann::json::parse(own);
  for (const std::string& text : {own, json.dump(4), json.dump()}) {
    const auto tokenizer = TokenizerFromJson(text);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    EXPECT_EQ((*tokenizer)->kind(), "byte");
    EXPECT_EQ((*tokenizer)->Json(), own);
  }
  json["model"]["ignore_merges"] = true;
  EXPECT_EQ((*TokenizerFromJson(json.dump()))->kind(), "bpe");
}

}  // namespace
}  // namespace espalier
