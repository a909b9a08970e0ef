#include "worker/tokenizer/sentencepiece_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/worker/support/test_folder.h"
#include "tests/worker/tokenizer/tokenizer_cases.h"
#include "worker/tokenizer/open_tokenizer.h"

namespace espalier {
namespace {

using testing::HasSubstr;

std::unique_ptr<Tokenizer> Open(SentencePieceOptions options = {}) {
  const auto json = JsonOfSentencePiece(SentencePieceFile(), options);
  EXPECT_TRUE(json.ok()) << json.status();
  auto opened = TokenizerFromJson(*json);
  EXPECT_TRUE(opened.ok()) << opened.status();
  return *std::move(opened);
}

TEST(SentencePieceModel, EncodesAsItsLibraryDoes) {
  const std::unique_ptr<Tokenizer> tokenizer = Open();
  for (const TokenizerCase& one : SentencePieceCases()) {
    std::vector<int32_t> ids;
    ASSERT_TRUE(tokenizer->Encode(one.text, ids).ok()) << one.text;
    EXPECT_EQ(ids, one.ids) << one.text;
    EXPECT_EQ(*tokenizer->Decode(ids), one.text);
  }
}

TEST(SentencePieceModel, TokensOfTheUsersAreFoundInTexts) {
  std::vector<int32_t> ids;
  const std::unique_ptr<Tokenizer> tokenizer = Open();
  ASSERT_TRUE(tokenizer->Encode("a<tool>", ids).ok());
  EXPECT_EQ(ids.size(), 2U);
  EXPECT_EQ(ids.back(), tokenizer->IdOf("<tool>"));
}

TEST(SentencePieceModel, FramesTextsAsAsked) {
  std::vector<int32_t> ids;
  ASSERT_TRUE(Open()->Encode("a", ids, {.frame = true}).ok());
  EXPECT_EQ(ids.front(), 1);
  EXPECT_EQ(ids.size(), 2U);
  ids.clear();
  ASSERT_TRUE(Open({.add_begin = false, .add_end = true})->Encode("a", ids, {.frame = true}).ok());
  EXPECT_EQ(ids.back(), 2);
  EXPECT_EQ(ids.size(), 2U);
}

std::vector<int32_t> Ids(const Tokenizer& tokenizer, absl::string_view text) {
  std::vector<int32_t> ids;
  const absl::Status status = tokenizer.Encode(text, ids);
  EXPECT_TRUE(status.ok()) << status;
  return ids;
}

int32_t Id(const Tokenizer& tokenizer, absl::string_view token) {
  return tokenizer.IdOf(token).value_or(-1);
}

// What LlamaConverter of transformers makes of "legacy": false.
TEST(SentencePieceModel, WithoutLegacyNoMarkStandsBehindAToken) {
  for (const bool legacy : {true, false}) {
    const std::unique_ptr<Tokenizer> tokenizer = Open({.legacy = legacy});
    const int32_t tool = Id(*tokenizer, "<tool>");
    EXPECT_EQ(Ids(*tokenizer, "<tool>a"),
              (std::vector<int32_t>{tool, Id(*tokenizer, legacy ? "▁a" : "a")}));
    EXPECT_EQ(Ids(*tokenizer, "a"), std::vector<int32_t>{Id(*tokenizer, "▁a")});
    EXPECT_EQ(*tokenizer->Decode(Ids(*tokenizer, "a <tool>a")),
              legacy ? "a <tool> a" : "a <tool>a");
  }
}

TEST(SentencePieceModel, WithoutAPrefixSpaceNoMarkStandsBeforeATextEither) {
  for (const bool legacy : {true, false}) {
    const auto tokenizer = Open({.legacy = legacy, .add_prefix_space = false});
    EXPECT_EQ(Ids(*tokenizer, "a"), std::vector<int32_t>{Id(*tokenizer, "a")});
    EXPECT_EQ(*tokenizer->Decode(Ids(*tokenizer, " a")), " a");
  }
}

TEST(SentencePieceModel, TheConfigSaysWhereMarksStand) {
  const TestFolder folder;
  folder.Write("tokenizer.model", SentencePieceFile());
  for (const auto& [config, text, token] : {std::tuple{R"({})", "<tool>a", "▁a"},
                                            {R"({"legacy": null})", "<tool>a", "▁a"},
                                            {R"({"legacy": false})", "<tool>a", "a"},
                                            {R"({"add_prefix_space": false})", "a", "a"}}) {
    folder.Write("tokenizer_config.json", config);
    const auto tokenizer = OpenTokenizer(folder.path());
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    EXPECT_EQ(Ids(**tokenizer, text).back(), Id(**tokenizer, token)) << config;
  }
}

TEST(SentencePieceModel, AFolderWithoutTokenizerJsonIsReadByItsModel) {
  const TestFolder folder;
  folder.Write("tokenizer.model", SentencePieceFile());
  folder.Write("tokenizer_config.json", R"({"add_bos_token": false, "eos_token": "</s>"})");
  const auto tokenizer = OpenTokenizer(folder.path());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->end_of_text(), 2);
  std::vector<int32_t> ids;
  ASSERT_TRUE((*tokenizer)->Encode("", ids, {.frame = true}).ok());
  EXPECT_TRUE(ids.empty());
  folder.Write("tokenizer.model", "no model");
  EXPECT_THAT(std::string(OpenTokenizer(folder.path()).status().message()),
              HasSubstr(folder / "tokenizer.model"));
}

TEST(SentencePieceModel, OtherKindsAreRefusedByName) {
  const std::string model = SentencePieceFile();
  EXPECT_EQ(JsonOfSentencePiece("", {}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(JsonOfSentencePiece(model.substr(0, 1000), {}).status().code(),
            absl::StatusCode::kInvalidArgument);
  // A second trainer_spec overrides the first one: model_type (field 3) unigram.
  EXPECT_THAT(std::string(JsonOfSentencePiece(model + "\x12\x02\x18\x01", {}).status().message()),
              HasSubstr("the kind unigram; supported: bpe"));
  // normalizer_spec: remove_extra_whitespaces (field 4).
  EXPECT_EQ(JsonOfSentencePiece(model + "\x1a\x02\x20\x01", {}).status().code(),
            absl::StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace espalier
