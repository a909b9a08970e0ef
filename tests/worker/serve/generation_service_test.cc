#include "worker/serve/generation_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "tests/worker/serve/served_model.h"
#include "tests/worker/support/failing_allocator.h"
#include "worker/generation/batch_generator.h"

namespace espalier {
namespace {

Sequence SomeSequence(int number, int64_t tokens) {
  return {.prompt = {65 + number, 66, 67},
          .max_new_tokens = tokens,
          .seed = static_cast<uint64_t>(number)};
}

// All of a request's only choice.
std::string TextOf(Answer& answer) {
  std::string text;
  for (;;) {
    const absl::StatusOr<std::optional<Answer::Piece>> piece = answer.Next(absl::Seconds(1));
    if (!piece.ok()) return std::string(piece.status().message());
    if (!*piece) continue;
    text += (*piece)->text;
    if ((*piece)->end) return text;
  }
}

TEST(GenerationService, WhatManyAskForAtOnceIsWhatEachGetsAlone) {
  ServedModel served;
  const std::unique_ptr<Tokenizer> bytes = MakeByteTokenizer();
  std::vector<std::string> alone;  // first: a decoder has one thread
  for (int i = 0; i < 16; ++i) {
    alone.push_back(*bytes->DecodeText(*Generate(served.decoder(), SomeSequence(i, 10 + i))));
  }
  std::vector<std::shared_ptr<Answer>> answers;
  for (int i = 0; i < 16; ++i) {
    answers.push_back(*served.service().Submit({.sequences = {SomeSequence(i, 10 + i)}}));
  }
  for (size_t i = 0; i < 16; ++i) EXPECT_EQ(TextOf(*answers[i]), alone[i]) << i;
}

// With as many rows it would run out again, and clients that come back would only keep it busy.
TEST(GenerationService, TakesFewerRowsWhenMemoryRunsOut) {
  std::optional<FailingAllocator> failing;
  GenerationService::Options options = ServedModel::DefaultOptions();
  options.batch.worked = [&failing](int64_t) {
    if (!failing) failing.emplace(1);  // on the thread that computes
  };
  ServedModel served(options);
  const auto alone = Generate(served.decoder(), SomeSequence(1, 10));
  const auto answer = *served.service().Submit({.sequences = {SomeSequence(1, 10)}});
  EXPECT_THAT(TextOf(*answer), testing::HasSubstr("memory ran out"));
  EXPECT_EQ(served.service().rows(), 2);
  EXPECT_EQ(TextOf(**served.service().Submit({.sequences = {SomeSequence(1, 10)}})),
            *MakeByteTokenizer()->DecodeText(*alone));
}

// In turns, not in seconds: 16 clients that all want 30 ids are served side by side.
TEST(GenerationService, NoneOfSixteenClientsStarves) {
  ServedModel served({.batch = {.rows = 16, .positions = 256}, .most_waiting = 64});
  std::vector<std::shared_ptr<Answer>> hogs;
  // One asks for more than all rows can hold, for long.
  GenerationService::Request hog;
  for (int i = 0; i < 40; ++i) hog.sequences.push_back(SomeSequence(i, 250));
  hogs.push_back(*served.service().Submit(std::move(hog)));
  const int64_t before = served.service().turns();
  std::vector<std::shared_ptr<Answer>> answers;
  for (int i = 0; i < 15; ++i) {
    answers.push_back(*served.service().Submit({.sequences = {SomeSequence(i, 30)}}));
  }
  for (const auto& answer : answers) TextOf(*answer);
  // Four rows are left to the fifteen: four rounds of 30 turns, and what they waited for a row.
  EXPECT_LT(served.service().turns() - before, 250);
  hogs[0]->Abandon();
}

TEST(GenerationService, WhatIsTooMuchIsRefusedWholly) {
  ServedModel served({.batch = {.rows = 2, .positions = 256}, .most_waiting = 3});
  GenerationService::Request request;
  for (int i = 0; i < 6; ++i) request.sequences.push_back(SomeSequence(i, 200));
  const auto never = served.service().Submit(request);
  EXPECT_EQ(never.status().code(), absl::StatusCode::kInvalidArgument);
  request.sequences.pop_back();
  const auto taken = served.service().Submit(request);
  ASSERT_TRUE(taken.ok()) << taken.status();
  const auto later = served.service().Submit(request);
  EXPECT_EQ(later.status().code(), absl::StatusCode::kResourceExhausted);
  (*taken)->Abandon();
}

TEST(GenerationService, SequencesThatCannotBeAreRefusedAtOnce) {
  ServedModel served;
  const auto status = [&](Sequence sequence) {
    return served.service().Submit({.sequences = {std::move(sequence)}}).status().code();
  };
  EXPECT_EQ(status({}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status({.prompt = {1}, .max_new_tokens = 1000}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status({.prompt = {300}}), absl::StatusCode::kInvalidArgument);
}

TEST(GenerationService, WhatRunsMayEndAfterAStopAndNothingNewBegins) {
  ServedModel served;
  const auto answer = *served.service().Submit({.sequences = {SomeSequence(1, 40)}});
  EXPECT_TRUE(served.Stop().ok());
  EXPECT_EQ(TextOf(*answer).empty(), false);
  EXPECT_EQ(served.service().Submit({.sequences = {SomeSequence(1, 5)}}).status().code(),
            absl::StatusCode::kUnavailable);
}

TEST(GenerationService, AfterTheGraceNobodyWaitsAnyMore) {
  GenerationService::Options options = ServedModel::DefaultOptions();
  options.grace = absl::ZeroDuration();
  ServedModel served(options);
  const auto answer =
      *served.service().Submit({.sequences = std::vector<Sequence>(60, SomeSequence(1, 250))});
  EXPECT_TRUE(served.Stop().ok());
  absl::StatusOr<std::optional<Answer::Piece>> piece = answer->Next(absl::Seconds(1));
  while (piece.ok()) piece = answer->Next(absl::Seconds(1));
  EXPECT_THAT(std::string(piece.status().message()), testing::HasSubstr("server shut down"));
}

TEST(GenerationService, StopStringsEndAnAnswerBeforeThem) {
  ServedModel served;
  const std::unique_ptr<Tokenizer> bytes = MakeByteTokenizer();
  const std::string all = *bytes->DecodeText(*Generate(served.decoder(), SomeSequence(2, 40)));
  const size_t place = all.find_first_of("abcdefghijklmnopqrstuvwxyz0123456789 ,.", 3);
  ASSERT_NE(place, std::string::npos) << all;
  const std::string stop = all.substr(place, 1);
  const auto answer =
      *served.service().Submit({.sequences = {SomeSequence(2, 40)}, .stops = {stop}});
  EXPECT_EQ(TextOf(*answer), all.substr(0, all.find(stop)));
}

}  // namespace
}  // namespace espalier
