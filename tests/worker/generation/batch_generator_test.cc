#include "worker/generation/batch_generator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "tests/worker/support/tiny_model.h"

namespace espalier {
namespace {

using Results = std::map<int64_t, Continued>;

Results RunAll(BatchGenerator& batch) {
  Results results;
  while (batch.busy()) {
    absl::StatusOr<std::vector<Continued>> ended = batch.Turn();
    EXPECT_TRUE(ended.ok()) << ended.status();
    if (!ended.ok()) break;
    for (Continued& one : *ended) results[one.id] = std::move(one);
  }
  return results;
}

std::vector<int32_t> SomePrompt(int size, int first) {
  std::vector<int32_t> prompt;
  for (int i = 0; i < size; ++i) prompt.push_back((first + i * 5) % 23);
  return prompt;
}

// Of all kinds: prompts of 1 to 20 ids, some alike, answers that end early.
std::vector<Sequence> SomeSequences() {
  std::vector<Sequence> sequences;
  for (int i = 0; i < 24; ++i) {
    Sequence one;
    one.prompt = SomePrompt(1 + i * 7 % 20, i / 4);
    one.max_new_tokens = 3 + i * 5 % 17;
    one.seed = SampleSeed(11, static_cast<uint64_t>(i), 0);
    if (i % 3 == 1) one.sample = {.temperature = 0.8, .top_k = 12, .repetition_penalty = 1.2};
    if (i % 3 == 2) one.sample = {.temperature = 1.3, .top_p = 0.9, .min_p = 0.01};
    if (i % 5 == 0) one.stop_ids = {7, 9};
    sequences.push_back(std::move(one));
  }
  return sequences;
}

std::vector<std::vector<int32_t>> IdsOf(const std::vector<Continued>& results) {
  std::vector<std::vector<int32_t>> ids;
  for (const Continued& one : results) ids.push_back(one.new_ids);
  return ids;
}

class BatchOf : public testing::TestWithParam<bool> {  // GPT-2's, or Llama's
 protected:
  const TinyModel model_{GetParam() ? TinyGpt2Config() : TinyModelConfig()};
};
INSTANTIATE_TEST_SUITE_P(Architectures, BatchOf, testing::Bool());

TEST_P(BatchOf, AnySizeSaysWhatOneByOneSays) {
  const auto alone = GenerateAll(*model_.decoder, SomeSequences(), 1);
  ASSERT_TRUE(alone.ok()) << alone.status();
  for (const int64_t rows : {2, 5, 16, 24}) {
    const auto together = GenerateAll(*model_.decoder, SomeSequences(), rows);
    ASSERT_TRUE(together.ok()) << together.status();
    EXPECT_EQ(IdsOf(*together), IdsOf(*alone)) << rows;
  }
}

TEST_P(BatchOf, WhatComesWhileOthersRunSaysTheSame) {
  const std::vector<Sequence> sequences = SomeSequences();
  const auto alone = GenerateAll(*model_.decoder, sequences, 1);
  for (const int64_t part : {4, 256}) {
    // Parts of prompts are the same for all, so this compares among themselves.
    BatchGenerator one =
        *BatchGenerator::Create(*model_.decoder, {.rows = 1, .positions = 64, .prompt_part = part});
    BatchGenerator many =
        *BatchGenerator::Create(*model_.decoder, {.rows = 6, .positions = 64, .prompt_part = part});
    Results expected, got;
    for (const Sequence& sequence : sequences) {
      ASSERT_TRUE(one.Add(sequence).ok());
      expected.merge(RunAll(one));
      ASSERT_TRUE(many.Add(sequence).ok());
      absl::StatusOr<std::vector<Continued>> ended = many.Turn();
      ASSERT_TRUE(ended.ok()) << ended.status();
      for (Continued& done : *ended) got[done.id] = std::move(done);
    }
    got.merge(RunAll(many));
    ASSERT_EQ(got.size(), sequences.size());
    for (const auto& [id, result] : expected) EXPECT_EQ(got[id].new_ids, result.new_ids) << id;
    if (part == 256) {
      EXPECT_EQ(expected[1].new_ids, (*alone)[0].new_ids);
    }
  }
}

TEST(BatchGenerator, ManySamplesOfAPromptComputeItOnce) {
  const TinyModel model(TinyModelConfig());
  BatchGenerator batch =
      *BatchGenerator::Create(*model.decoder, {.rows = 4, .positions = 32, .prompt_part = 8});
  for (uint64_t sample = 0; sample < 10; ++sample) {
    ASSERT_TRUE(batch
                    .Add({.prompt = SomePrompt(13, 2),
                          .max_new_tokens = 9,
                          .seed = SampleSeed(1, 0, sample)})
                    .ok());
  }
  const Results results = RunAll(batch);
  EXPECT_EQ(batch.prompt_count().computed, 13);
  EXPECT_EQ(batch.prompt_count().shared, 9 * 13);
  for (const auto& [id, result] : results) {
    EXPECT_EQ(*Generate(*model.decoder, {.prompt = SomePrompt(13, 2),
                                         .max_new_tokens = 9,
                                         .seed = SampleSeed(1, 0, static_cast<uint64_t>(id - 1))}),
              result.new_ids)
        << id;
  }
}

TEST(BatchGenerator, AConversationComputesWhatIsNewOfIt) {
  const TinyModel model(TinyModelConfig());
  BatchGenerator batch =
      *BatchGenerator::Create(*model.decoder, {.rows = 1, .positions = 64, .prompt_part = 4});
  std::vector<int32_t> said = SomePrompt(10, 3);
  const auto answer = [&] {
    EXPECT_TRUE(batch.Add({.prompt = said, .max_new_tokens = 5}).ok());
    const Results results = RunAll(batch);
    return results.begin()->second.new_ids;
  };
  const std::vector<int32_t> first = answer();
  said.insert(said.end(), first.begin(), first.end());
  said.push_back(1);
  answer();
  EXPECT_EQ(batch.prompt_count().shared, 8);  // two whole parts
  EXPECT_EQ(batch.prompt_count().computed, 10 + 8);
}

TEST(BatchGenerator, RowsThatEndAreTakenByThoseThatWait) {
  const TinyModel model(TinyModelConfig());
  BatchGenerator batch = *BatchGenerator::Create(*model.decoder, {.rows = 2, .positions = 64});
  ASSERT_TRUE(batch.Add({.prompt = {1}, .max_new_tokens = 60, .owner = 1}).ok());
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(batch.Add({.prompt = {2 + i}, .max_new_tokens = 4, .owner = 2}).ok());
  }
  int turns = 0;
  while (batch.waiting() > 0 || batch.running() > 1) {
    ASSERT_TRUE(batch.Turn().ok());
    ++turns;
  }
  EXPECT_LE(turns, 5 * 4);
  EXPECT_EQ(batch.running(), 1);
}

TEST(BatchGenerator, NoOwnerStarves) {
  const TinyModel model(TinyModelConfig());
  BatchGenerator batch = *BatchGenerator::Create(*model.decoder, {.rows = 4, .positions = 64});
  std::map<int64_t, int64_t> owner_of;
  const auto add = [&](int64_t owner, int64_t tokens) {
    owner_of[*batch.Add({.prompt = {1}, .max_new_tokens = tokens, .owner = owner})] = owner;
  };
  for (int i = 0; i < 50; ++i) add(1, 60);
  ASSERT_TRUE(batch.Turn().ok());
  for (int64_t owner = 2; owner < 5; ++owner) add(owner, 5);
  std::set<int64_t> served;
  for (int turn = 0; turn < 3 * 5; ++turn) {
    const auto ended = batch.Turn();
    ASSERT_TRUE(ended.ok());
    for (const Continued& one : *ended) served.insert(owner_of[one.id]);
  }
  EXPECT_THAT(served, testing::ElementsAre(2, 3, 4));
}

TEST(BatchGenerator, ALongPromptHoldsNobodyUpForMoreThanItsPart) {
  const TinyModel model(TinyModelConfig());
  BatchGenerator batch =
      *BatchGenerator::Create(*model.decoder, {.rows = 2, .positions = 64, .prompt_part = 4});
  int tokens = 0;
  ASSERT_TRUE(batch
                  .Add({.prompt = {1},
                        .max_new_tokens = 30,
                        .on_token =
                            [&](int32_t) {
                              ++tokens;
                              return true;
                            }})
                  .ok());
  ASSERT_TRUE(batch.Turn().ok());
  ASSERT_TRUE(batch.Add({.prompt = SomePrompt(40, 1), .max_new_tokens = 1}).ok());
  for (int turn = 0; turn < 10; ++turn) {
    const int before = tokens;
    ASSERT_TRUE(batch.Turn().ok());
    EXPECT_EQ(tokens, before + 1);
  }
  EXPECT_EQ(batch.prompt_count().computed, 41);
}

TEST(BatchGenerator, WhatIsCancelledEndsInTheNextTurn) {
  const TinyModel model(TinyModelConfig());
  BatchGenerator batch =
      *BatchGenerator::Create(*model.decoder, {.rows = 2, .positions = 64, .prompt_part = 4});
  std::vector<int64_t> ids;
  for (const int size : {1, 40, 3}) {  // runs, is being computed, waits
    ids.push_back(*batch.Add({.prompt = SomePrompt(size, 1), .max_new_tokens = 20}));
  }
  ASSERT_TRUE(batch.Turn().ok());
  for (const int64_t id : ids) batch.Cancel(id);
  batch.Cancel(999);
  const auto ended = batch.Turn();
  ASSERT_TRUE(ended.ok());
  std::vector<int64_t> gone;
  for (const Continued& one : *ended) {
    EXPECT_EQ(one.end, SequenceEnd::kCancelled);
    gone.push_back(one.id);
  }
  EXPECT_THAT(gone, testing::UnorderedElementsAreArray(ids));
  EXPECT_FALSE(batch.busy());
}

TEST(BatchGenerator, MemoryIsTakenOnceAndSaid) {
  const TinyModel model(TinyModelConfig());
  const auto refused =
      BatchGenerator::Create(*model.decoder, {.rows = 1 << 20, .positions = 1 << 20}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), testing::HasSubstr("allowed for this model"));
  EXPECT_EQ(KeyValueCache::Bytes(TinyModelConfig(), {.rows = 2, .positions = 10}, 4),
            2 * 3 * 2 * 10 * 2 * 6 * 4);
}

// In double precision the operators of other devices compute, which read all of a row.
TEST(BatchGenerator, ASequenceWithoutNumbersFailsAloneAndLeavesNothingInItsRow) {
  DecoderConfig config = TinyModelConfig();
  config.tie_word_embeddings = false;
  const TinyModel model(config, torch::kDouble);
  {
    torch::NoGradGuard no_grad;
    model.parameters.Embedding().leaf[22].fill_(std::nan(""));
    model.parameters.Head()[22].copy_(model.parameters.Head()[21]);  // the likeliest is another
  }
  BatchGenerator batch = *BatchGenerator::Create(*model.decoder, {.rows = 2, .positions = 40});
  const Sequence damaged{.prompt = std::vector<int32_t>(20, 22), .max_new_tokens = 2};
  const Sequence lasting{
      .prompt = SomePrompt(9, 1), .max_new_tokens = 8, .sample = {.temperature = 0}};
  const int64_t fails = *batch.Add(damaged), lasts = *batch.Add(lasting);
  Results results = RunAll(batch);
  EXPECT_EQ(results[fails].end, SequenceEnd::kFailed);
  EXPECT_EQ(results[lasts].end, SequenceEnd::kLength);
  for (int i = 0; i < 2; ++i) {
    Sequence brief{.prompt = {3}, .max_new_tokens = 3, .sample = {.temperature = 0}};
    const int64_t one = *batch.Add(brief), other = *batch.Add(lasting);
    results = RunAll(batch);
    EXPECT_EQ(results[one].end, SequenceEnd::kLength);
    EXPECT_EQ(results[other].end, SequenceEnd::kLength);
  }
}

}  // namespace
}  // namespace espalier
