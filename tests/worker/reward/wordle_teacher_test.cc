#include "worker/reward/wordle_teacher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/worker/reward/made_data.h"
#include "worker/reward/wordle_guess.h"
#include "worker/reward/wordle_verifier.h"

namespace espalier {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

WordleWord Word(absl::string_view text) { return *WordleWord::Parse(text); }

const Vocabulary& Shipped() {
  static const Vocabulary& shipped =
      *new Vocabulary(*Vocabulary::Load(ESPALIER_SOURCE_DIR "/configs/data/wordle-words.txt",
                                        ESPALIER_SOURCE_DIR "/configs/data/wordle-secrets.txt"));
  return shipped;
}

double MeanTurns(const WordleTeacher& teacher) {
  SplitMix64 random(1);
  const auto secrets = Shipped().secrets.words();
  double turns = 0;
  for (int i = 0; i < 100; ++i) {
    const WordleWord secret = secrets[random.Below(secrets.size())];
    turns += static_cast<double>(TeachGame(teacher, secret, secrets, random).size());
  }
  return turns / 100;
}

TEST(WordleTeacher, GuessesOnlyWhatAgreesWithTheMarks) {
  SplitMix64 random(2);
  const auto secrets = Shipped().secrets.words();
  for (int i = 0; i < 40; ++i) {
    const WordleWord secret = secrets[random.Below(secrets.size())];
    const History game = TeachGame({.considered = 4}, secret, secrets, random);
    for (size_t turn = 0; turn < game.size(); ++turn) {
      EXPECT_TRUE(Agrees(game[turn].word, absl::MakeSpan(game).first(turn)));
      EXPECT_EQ(game[turn].pattern, Feedback(secret, game[turn].word));
    }
    EXPECT_TRUE(game.back().pattern.solved() || game.size() == kWordleTurns);
  }
}

TEST(WordleTeacher, ThatAsksForInformationNeedsFewerTurns) {
  EXPECT_LT(MeanTurns({.considered = 16}), MeanTurns({.considered = 1}));
}

TEST(WordleTeacher, SaysWhatTheMarksSay) {
  const WordleWord secret = Word("ALLEY");
  const History history{{Word("CRANE"), Feedback(secret, Word("CRANE"))},
                        {Word("SLATE"), Feedback(secret, Word("SLATE"))},
                        {Word("ABBEY"), Feedback(secret, Word("ABBEY"))}};
  EXPECT_EQ(TeachThoughts(history, secret),
            "Places: A L _ E Y. Elsewhere: A not at 3, E not at 5. Not there: B, C, N, R, S, T. "
            "ALLEY agrees.");
  EXPECT_THAT(TeachThoughts({}, secret), HasSubstr("Nothing is known"));
}

TEST(WordleData, HoldsTurnsThatTheVerifierAccepts) {
  const TestFolder folder;
  const WordleDataOptions options{.amount = {.train = 30, .validation = 5, .seed = 9},
                                  .teacher = {.considered = 2}};
  ASSERT_TRUE(MakeData(folder, "data", [&](DataWriter& writer) {
                return MakeWordleData(Shipped(), options, writer);
              }).ok());
  const auto verifier = MakeWordleVerifier(Shipped(), {});
  const auto prompts = RowsOf(folder / "data/train-prompts.jsonl");
  const auto examples = RowsOf(folder / "data/train.jsonl");
  ASSERT_EQ(prompts.size(), 30u);
  EXPECT_GT(examples.size(), 60u);
  std::map<std::string, std::string> taught;
  for (const JsonRow& row : examples) {
    const auto& said = row["messages"];
    ASSERT_EQ(said.size(), 3u);
    const std::string answer = said[2]["content"];
    const size_t thinks = answer.find("<think>") + sizeof("<think>") - 1;
    const std::string completion = answer.substr(thinks);
    EXPECT_TRUE(ReadGuessStrictly(completion).word) << completion;
    taught[SpellPrompt({.turns = {{"system", said[0]["content"]}, {"user", said[1]["content"]}},
                        .opening = answer.substr(0, thinks)})] = completion;
  }
  for (const JsonRow& row : prompts) {
    EXPECT_THAT(std::string(row["prompt"]), EndsWith("<think>"));
    ASSERT_TRUE(taught.count(row["prompt"])) << "a state that was taught";
    const std::string record = row["record"].dump();
    const auto judged = verifier->Judge({{record, taught[row["prompt"]]}}, {});
    ASSERT_TRUE(judged.ok()) << judged.status();
    EXPECT_EQ((*judged)[0].invalid, "");
  }
}

TEST(WordleData, SharesNoSecretBetweenTrainingAndValidation) {
  const TestFolder folder;
  const WordleDataOptions options{.amount = {.train = 300, .validation = 100, .seed = 4},
                                  .teacher = {.considered = 1}};
  const WordList few =
      *WordList::Of({Shipped().secrets.words().begin(), Shipped().secrets.words().begin() + 40});
  ASSERT_TRUE(MakeData(folder, "data", [&](DataWriter& writer) {
                return MakeWordleData({.guesses = few, .secrets = few}, options, writer);
              }).ok());
  std::set<std::string> train, validation, shared;
  for (const JsonRow& row : RowsOf(folder / "data/train-prompts.jsonl")) {
    train.insert(row["record"]["secret"]);
  }
  for (const JsonRow& row : RowsOf(folder / "data/validation-prompts.jsonl")) {
    validation.insert(row["record"]["secret"]);
  }
  std::set_intersection(train.begin(), train.end(), validation.begin(), validation.end(),
                        std::inserter(shared, shared.end()));
  EXPECT_TRUE(shared.empty());
  EXPECT_GT(train.size(), validation.size());
  EXPECT_EQ(validation.size(), 10u) << "a quarter of the secrets, each of them met";
}

std::set<std::string> PromptsOf(const std::string& path) {
  std::set<std::string> prompts;
  for (const JsonRow& row : RowsOf(path)) prompts.insert(std::string(row["prompt"]));
  return prompts;
}

TEST(WordleData, MayHoldOutPositionsAloneSoThatEverySecretIsPractised) {
  const TestFolder folder;
  const WordList few =
      *WordList::Of({Shipped().secrets.words().begin(), Shipped().secrets.words().begin() + 40});
  const WordleDataOptions options{.amount = {.train = 300, .validation = 100, .seed = 4},
                                  .teacher = {.considered = 1},
                                  .hold_out = WordleHoldOut::kPositions,
                                  .form = PromptForm::kPlain};
  ASSERT_TRUE(MakeData(folder, "data", [&](DataWriter& writer) {
                return MakeWordleData({.guesses = few, .secrets = few}, options, writer);
              }).ok());
  std::set<std::string> train, validation, states;
  for (const JsonRow& row : RowsOf(folder / "data/train-prompts.jsonl")) {
    train.insert(row["record"]["secret"]);
  }
  for (const JsonRow& row : RowsOf(folder / "data/train.jsonl")) states.insert(row["prompt"]);
  for (const JsonRow& row : RowsOf(folder / "data/validation-prompts.jsonl")) {
    validation.insert(row["record"]["secret"]);
    EXPECT_EQ(states.count(row["prompt"]), 0u) << row["prompt"];
  }
  EXPECT_EQ(train.size(), few.words().size());
  EXPECT_GT(validation.size(), few.words().size() / 2);
  EXPECT_EQ(ParseWordleHoldOut("words").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(WordleData, MayAskFromPositionsOfPlayersWhoErr) {
  const TestFolder folder;
  const WordList few =
      *WordList::Of({Shipped().secrets.words().begin(), Shipped().secrets.words().begin() + 40});
  const WordleDataOptions options{.amount = {.train = 200, .validation = 50, .seed = 4},
                                  .erring = 0.5,
                                  .form = PromptForm::kPlain};
  ASSERT_TRUE(MakeData(folder, "data", [&](DataWriter& writer) {
                return MakeWordleData({.guesses = few, .secrets = few}, options, writer);
              }).ok());
  std::set<std::string> seen;
  std::set<size_t> lengths;
  int mistakes = 0;
  for (const char* split : {"train", "validation"}) {
    const std::string path = folder / absl::StrCat("data/", split, "-prompts.jsonl");
    for (const JsonRow& row : RowsOf(path)) {
      const WordleRecord record = *ParseWordleRecord(row["record"].dump());
      const absl::Span<const Guess> history(record.history);
      std::set<WordleWord> words = {record.secret};
      for (size_t i = 0; i < history.size(); ++i) {
        EXPECT_TRUE(words.insert(history[i].word).second) << "the secret, or twice the same";
        mistakes += Agrees(history[i].word, history.first(i)) ? 0 : 1;
      }
      lengths.insert(history.size());
      const bool fresh = seen.insert(row["prompt"]).second;
      EXPECT_TRUE(fresh || absl::string_view(split) == "train") << row["prompt"];
    }
  }
  EXPECT_EQ(lengths, (std::set<size_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_GT(mistakes, 100);
}

// What training has word for word, games as they begin among it, would measure what was learnt by
// heart.
TEST(WordleData, NoPromptOfValidationIsOneOfTraining) {
  const TestFolder folder;
  const WordList few =
      *WordList::Of({Shipped().secrets.words().begin(), Shipped().secrets.words().begin() + 60});
  const WordleDataOptions options{.amount = {.train = 400, .validation = 60, .seed = 4},
                                  .teacher = {.considered = 8},
                                  .form = PromptForm::kPlain};
  ASSERT_TRUE(MakeData(folder, "data", [&](DataWriter& writer) {
                return MakeWordleData({.guesses = few, .secrets = few}, options, writer);
              }).ok());
  std::set<std::string> train = PromptsOf(folder / "data/train-prompts.jsonl");
  train.merge(PromptsOf(folder / "data/train.jsonl"));
  for (const char* name : {"data/validation-prompts.jsonl", "data/validation.jsonl"}) {
    for (const std::string& prompt : PromptsOf(folder / name)) {
      EXPECT_EQ(train.count(prompt), 0u) << name << ": " << prompt;
    }
  }
  const auto rows = RowsOf(folder / "data/validation-prompts.jsonl");
  EXPECT_EQ(rows.size(), 60u) << "as many as asked for";
  for (const JsonRow& row : rows) EXPECT_FALSE(row["record"]["history"].empty());
}

// Data that runs have learnt from stay what they are.
TEST(WordleData, OfTrainingDoesNotDependOnWhatIsHeldBack) {
  const TestFolder folder;
  ASSERT_TRUE(MakeData(folder, "data", [&](DataWriter& writer) {
                return MakeWordleData(Shipped(),
                                      {.amount = {.train = 40, .validation = 10, .seed = 3},
                                       .teacher = {.considered = 1},
                                       .form = PromptForm::kPlain},
                                      writer);
              }).ok());
  uint64_t hash = 14695981039346656037U;  // FNV-1a
  for (const char* name : {"data/train.jsonl", "data/train-prompts.jsonl"}) {
    for (const char c : ReadText(folder / name)) {
      hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211U;
    }
  }
  EXPECT_EQ(hash, 18042425894290606622U);
}

// The one word that tells all others apart is what the teacher begins with, and solves its own
// games at once.
TEST(WordleData, WithoutAStateOfItsOwnForValidationIsRefused) {
  const TestFolder folder;
  const WordleWord telling = Word("ABCDE");
  const WordList words = *WordList::Of({telling, Word("AFGHI"), Word("JBKLM"), Word("NOCPQ")});
  bool refused = false;
  for (uint64_t seed = 0; seed < 16; ++seed) {
    const absl::Status status = MakeData(folder, absl::StrCat(seed), [&](DataWriter& writer) {
      return MakeWordleData(
          {.guesses = words, .secrets = words},
          {.amount = {.train = 6, .validation = 2, .seed = seed}, .teacher = {.considered = 100}},
          writer);
    });
    if (status.ok()) continue;  // another word is held out
    refused = true;
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("no state that training has not"));
  }
  EXPECT_TRUE(refused);
}

TEST(WordleData, IsAFunctionOfTheSeed) {
  const TestFolder folder;
  const auto make = [&](const std::string& name, uint64_t seed) {
    const WordleDataOptions options{.amount = {.train = 10, .validation = 2, .seed = seed},
                                    .teacher = {.considered = 2},
                                    .form = PromptForm::kPlain};
    EXPECT_TRUE(MakeData(folder, name, [&](DataWriter& writer) {
                  return MakeWordleData(Shipped(), options, writer);
                }).ok());
    return AllText(folder / name);
  };
  const std::string first = make("a", 1);
  EXPECT_EQ(make("b", 1), first);
  EXPECT_NE(make("c", 2), first);
}

TEST(WordleData, OfOneSecretCannotHoldAnyOut) {
  const TestFolder folder;
  const WordList one = *WordList::Of({Word("CRANE")});
  const auto make = [&](int64_t validation) {
    return MakeData(folder, absl::StrCat("v", validation), [&](DataWriter& writer) {
      return MakeWordleData({.guesses = one, .secrets = one},
                            {.amount = {.train = 1, .validation = validation}}, writer);
    });
  };
  EXPECT_TRUE(make(0).ok());
  EXPECT_THAT(std::string(make(1).message()), HasSubstr("too few"));
}

}  // namespace
}  // namespace espalier
