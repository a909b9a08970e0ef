#include "worker/data/token_manifest.h"

#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "common/base/random.h"

namespace espalier {
namespace {

TokenManifest Sample() {
  TokenManifest manifest{.tokenizer = "byte",
                         .tokenizer_sha256 = std::string(64, 'b'),
                         .vocab_size = 257,
                         .eos_id = 256,
                         .token_bytes = 2,
                         .source_bytes = 11};
  manifest.splits["train"] = {.tokens = 12,
                              .documents = 1,
                              .shards = {{"train-00000.tokens", 8, std::string(64, 'a')},
                                         {"train-00001.tokens", 4, std::string(64, 'c')}}};
  manifest.splits["validation"] = {};
  return manifest;
}

TokenManifest ExampleSample() {
  TokenManifest manifest = Sample();
  manifest.holds = DataKind::kPromptCompletion;
  manifest.splits["train"].documents = 3;
  manifest.splits["train"].examples = {{"train-00000.examples", 2, std::string(64, 'd')},
                                       {"train-00001.examples", 1, std::string(64, 'e')}};
  return manifest;
}

// The order of samples of a run that goes on depends on the hash.
TEST(TokenManifest, OfTextIsWrittenAsItAlwaysWas) {
  const std::string json = TokenManifestToJson(Sample());
  EXPECT_EQ(json.find("holds"), std::string::npos);
  EXPECT_TRUE(absl::StartsWith(json, "{\n  \"format\": \"espalier-tokens\",\n  \"version\": 1,\n"));
}

TEST(TokenManifest, OfExamplesSurvivesTheRoundTrip) {
  const std::string json = TokenManifestToJson(ExampleSample());
  const auto read = TokenManifestFromJson(json);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(TokenManifestToJson(*read), json);
  EXPECT_EQ(read->holds, DataKind::kPromptCompletion);
  EXPECT_EQ(read->splits.at("train").examples[1].count, 1);
}

TEST(TokenManifest, SurvivesTheRoundTrip) {
  const std::string json = TokenManifestToJson(Sample());
  const auto read = TokenManifestFromJson(json);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(TokenManifestToJson(*read), json);
  EXPECT_EQ(read->splits.at("train").shards[1].count, 4);
}

struct Edit {
  const char* name;
  const char* from;
  const char* to;
  const char* message;
};

void ExpectRefused(const TokenManifest& manifest, const Edit& edit) {
  const std::string good = TokenManifestToJson(manifest);
  const std::string bad = absl::StrReplaceAll(good, {{edit.from, edit.to}});
  ASSERT_NE(bad, good);
  const absl::Status status = TokenManifestFromJson(bad).status();
  ASSERT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find(edit.message), absl::string_view::npos) << status;
}

class BadTokenManifest : public testing::TestWithParam<Edit> {};

TEST_P(BadTokenManifest, IsRefusedWithTheField) { ExpectRefused(Sample(), GetParam()); }

class BadExampleManifest : public testing::TestWithParam<Edit> {};

TEST_P(BadExampleManifest, IsRefusedWithTheField) { ExpectRefused(ExampleSample(), GetParam()); }

INSTANTIATE_TEST_SUITE_P(
    TokenManifest, BadExampleManifest,
    testing::ValuesIn<Edit>({
        {"DoesNotSayWhatItHolds", "\"holds\"", "\"held\"", "'holds' is missing"},
        {"HoldsSomethingElse", "prompt-completion", "chat", "the kind 'chat'"},
        {"NoTable", "\"examples\": [", "\"table\": [", "'examples' is missing"},
        {"TooFewInTheTable", "\"examples\": 2", "\"examples\": 1", "do not add up"},
        {"TooManyInTheTable", "\"examples\": 1", "\"examples\": 2", "do not add up"},
        {"AsManyTables", "\"documents\": 3", "\"documents\": 4", "do not add up"},
        {"LeavesTheFolder", "train-00001.examples", "../x", "not a plain name"},
        {"TableAndTokensInOneFile", "train-00000.examples", "train-00000.tokens", "listed twice"},
    }),
    [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(
    TokenManifest, BadTokenManifest,
    testing::ValuesIn<Edit>({
        {"NotJson", "{\n  \"format\"", "\"format\"", "not valid JSON"},
        {"Foreign", "espalier-tokens", "other", "it is 'other'"},
        {"Newer", "\"version\": 1", "\"version\": 3", "version 3"},
        {"NoVocabulary", "vocab_size", "size", "'vocab_size' is missing"},
        {"TextVocabulary", "257", "\"257\"", "'vocab_size' must be an integer"},
        {"NegativeTokens", "\"tokens\": 8", "\"tokens\": -8", "got -8"},
        {"WrongSum", "\"tokens\": 12", "\"tokens\": 13", "do not add up"},
        {"EmptyShard", "\"tokens\": 8", "\"tokens\": 0", "do not add up"},
        {"EosOutside", "\"eos_id\": 256", "\"eos_id\": 257", "'eos_id' 257 is outside"},
        {"NarrowTokens", "\"token_bytes\": 2", "\"token_bytes\": 1", "does not hold"},
        {"OddTokens", "\"token_bytes\": 2", "\"token_bytes\": 3", "does not hold"},
        {"LeavesTheFolder", "train-00000", "../train-00000", "not a plain name"},
        {"SameShardTwice", "train-00001", "train-00000", "listed twice"},
        {"BadHash", "aaaa", "AAAA", "64 hex digits"},
    }),
    [](const auto& info) { return info.param.name; });

TEST(TokenManifest, MutationsDoNoHarm) {
  const std::string good[] = {TokenManifestToJson(Sample()), TokenManifestToJson(ExampleSample())};
  SplitMix64 random(7);
  for (int round = 0; round < 10000; ++round) {
    std::string text = good[round % 2];
    for (int edits = 0; edits < 3; ++edits) {
      const size_t at = random.Below(text.size());
      if (random.Below(2) == 0) text[at] = static_cast<char>(random.Next());
      if (random.Below(4) == 0) text.erase(at, random.Below(20));
    }
    const auto read = TokenManifestFromJson(text);
    EXPECT_TRUE(!read.ok() || read->eos_id < read->vocab_size) << text;
  }
}

TEST(ShardHeader, SurvivesTheRoundTripAndShowsEveryFlippedBit) {
  const auto bytes = EncodeShardHeader({.item_bytes = 2, .count = 12345});
  const auto header = DecodeShardHeader(bytes, "s");
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->item_bytes, 2);
  EXPECT_EQ(header->count, 12345);
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    auto flipped = bytes;
    flipped[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_FALSE(DecodeShardHeader(flipped, "s").ok()) << bit;
  }
  EXPECT_FALSE(DecodeShardHeader(absl::MakeConstSpan(bytes).first(63), "s").ok());
}

TEST(ShardHeader, TellsTokensFromExamples) {
  const ShardHeader table{ShardHolds::kExamples, kExampleEntryBytes, 12345};
  EXPECT_EQ(*DecodeShardHeader(EncodeShardHeader(table), "s"), table);
  const ShardHeader narrow{ShardHolds::kExamples, 8, 12345};
  EXPECT_FALSE(DecodeShardHeader(EncodeShardHeader(narrow), "s").ok());
}

}  // namespace
}  // namespace espalier
