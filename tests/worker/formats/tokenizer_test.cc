#include "worker/formats/tokenizer.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace espalier {
namespace {

std::vector<int32_t> Encoded(const Tokenizer& tokenizer, absl::string_view text) {
  std::vector<int32_t> ids;
  tokenizer.Encode(text, ids);
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

TEST(TokenizerFromJson, AcceptsItsOwnInAnyLayoutAndNoOther) {
  const std::string own = MakeByteTokenizer()->Json();
  EXPECT_TRUE(TokenizerFromJson(own).ok());
  auto json = nlohmann::json::parse(own);
  EXPECT_TRUE(TokenizerFromJson(json.dump(4)).ok());
  json["model"]["merges"] = {{"a", "b"}};
  const absl::Status other = TokenizerFromJson(json.dump()).status();
  EXPECT_EQ(other.code(), absl::StatusCode::kUnimplemented);
  EXPECT_NE(std::string(other.message()).find("BPE tokenizer with 257 entries"), std::string::npos)
      << other;
  EXPECT_EQ(TokenizerFromJson("{").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(OpenTokenizer, NamesTheFile) {
  std::string folder = testing::TempDir() + "/tokenizer-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr) << folder;
  EXPECT_EQ(OpenTokenizer(folder + "/none").status().code(), absl::StatusCode::kNotFound);
  std::ofstream(folder + "/tokenizer.json") << MakeByteTokenizer()->Json();
  EXPECT_TRUE(OpenTokenizer(folder).ok());
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace espalier
