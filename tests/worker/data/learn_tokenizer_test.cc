#include "worker/data/learn_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/worker/support/test_folder.h"
#include "worker/data/dataset.h"
#include "worker/data/inspect.h"
#include "worker/data/prepare.h"
#include "worker/tokenizer/open_tokenizer.h"

namespace espalier {
namespace {

using testing::HasSubstr;

std::string Lines(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) absl::StrAppend(&text, "line ", i, " of a short text\n");
  return text;
}

TEST(LearnTokenizer, WhatItLearntPreparesData) {
  const TestFolder folder;
  const std::string file = folder.Write("in.txt", Lines(500));
  LearnTokenizerOptions options{.inputs = {file}, .output = folder / "bpe"};
  options.trainer.vocab_size = 274;
  const auto learnt = LearnTokenizer(PosixFileSystem(), options);
  ASSERT_TRUE(learnt.ok()) << learnt.status();
  EXPECT_EQ(learnt->vocab_size, 274);
  EXPECT_GT(learnt->bytes_per_token, 2);
  const auto tokenizer = OpenTokenizer(folder / "bpe");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  PrepareOptions prepare;
  prepare.inputs = {file};
  prepare.output = folder / "data";
  const auto prepared = PrepareData(PosixFileSystem(), **tokenizer, prepare);
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_EQ(prepared->manifest.tokenizer, "bpe");
  EXPECT_EQ(prepared->manifest.vocab_size, 274);
  EXPECT_EQ(prepared->manifest.token_bytes, 2);
  const auto data = Dataset::Open(folder / "data", {});
  const auto carried = OpenTokenizer(folder / "data");
  EXPECT_EQ((*carried)->Json(), (*tokenizer)->Json());
  EXPECT_THAT(*InspectData(*data, **carried, {}), HasSubstr("of a short text"));
}

TEST(LearnTokenizer, NothingIsOverwritten) {
  const TestFolder folder;
  folder.Write("bpe/there", "x");
  const LearnTokenizerOptions options{.inputs = {folder.Write("in.txt", Lines(9))},
                                      .output = folder / "bpe"};
  EXPECT_EQ(LearnTokenizer(PosixFileSystem(), options).status().code(),
            absl::StatusCode::kAlreadyExists);
}

TEST(LearnTokenizer, ASampleIsSpreadOverTheInput) {
  const TestFolder folder;
  std::string text;
  for (int i = 0; i < 400; ++i) {
    absl::StrAppend(&text, "{\"text\": \"", Lines(1).substr(0, 10), i, "\"}\n");
  }
  LearnTokenizerOptions options{.inputs = {folder.Write("in.jsonl", text)},
                                .output = folder / "bpe"};
  options.sample_bytes = static_cast<int64_t>(text.size()) / 4;
  options.trainer.vocab_size = 300;
  const auto learnt = LearnTokenizer(PosixFileSystem(), options);
  ASSERT_TRUE(learnt.ok()) << learnt.status();
  EXPECT_NEAR(static_cast<double>(learnt->read_bytes), static_cast<double>(options.sample_bytes),
              100);
}

}  // namespace
}  // namespace espalier
