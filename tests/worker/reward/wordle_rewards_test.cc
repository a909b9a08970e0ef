#include "worker/reward/wordle_rewards.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

WordleWord Word(absl::string_view text) { return *WordleWord::Parse(text); }

const WordList& List() {
  static const WordList& list = *new WordList(*[] {
    std::vector<WordleWord> words;
    for (const char* text : {"CRANE", "CRATE", "TRACE", "BRACE", "GRACE", "SLATE", "STALE", "LEAST",
                             "SWEAT", "ALLEY", "ABBEY", "LLAMA"}) {
      words.push_back(Word(text));
    }
    return WordList::Of(words);
  }());
  return list;
}

WordlePosition Position(absl::string_view secret, std::initializer_list<const char*> guesses) {
  WordlePosition position{.secret = Word(secret)};
  for (const char* guess : guesses) {
    position.history.push_back(
        {.word = Word(guess), .pattern = Feedback(position.secret, Word(guess))});
  }
  position.candidates = Candidates(List().words(), position.history);
  return position;
}

Judgement Judged(RewardSet set, const WordlePosition& position, absl::string_view word,
                 TrainingMoment moment = {}, absl::string_view before = "So.</think>\n") {
  return JudgeTurn(position, List(), absl::StrCat(before, "<guess>", word, "</guess>"),
                   {.set = set}, moment);
}

std::vector<std::string> Names(const Judgement& judgement) {
  std::vector<std::string> names;
  for (const RewardComponent& one : judgement.components) names.push_back(one.name);
  return names;
}

TEST(PredibaseRewards, FormatRisesWithHowNearItIsToAWord) {
  const WordlePosition start = Position("ALLEY", {});
  const auto format = [&](absl::string_view word) {
    return Judged(RewardSet::kPredibase, start, word).component("format");
  };
  EXPECT_EQ(format("CRANE"), 1);
  EXPECT_EQ(format("ZZZZZ"), 0.5);
  EXPECT_EQ(format("crane"), 0.5);
  EXPECT_EQ(format("CRANES"), 0.1);
  EXPECT_EQ(Judged(RewardSet::kPredibase, start, "CRANE", {}, "So.</think> ").total, 0)
      << "what is not in its form earns nothing";
}

TEST(PredibaseRewards, FeedbackIsAsReckonedByHand) {
  const WordlePosition position = Position("ALLEY", {"CRANE"});
  const auto feedback = [&](const WordlePosition& at, absl::string_view word) {
    return Judged(RewardSet::kPredibase, at, word).component("feedback");
  };
  EXPECT_NEAR(feedback(position, "SWEAT"), 0.35, 1e-12);
  EXPECT_NEAR(feedback(position, "CRANE"), -1.9, 1e-12);
  EXPECT_NEAR(feedback(Position("ALLEY", {}), "SWEAT"), 0.1, 1e-12);
  EXPECT_NEAR(feedback(Position("ALLEY", {"ABBEY"}), "ALLEY"), 3 * 0.2 + 2 * 0.05, 1e-12);
  EXPECT_EQ(feedback(position, "SWEATS"), 0);
}

TEST(PredibaseRewards, InformationIsThePartOfTheBitsThatIsExpected) {
  WordlePosition position = Position("TRACE", {});
  position.candidates.clear();
  for (const char* text :
       {"CRANE", "CRATE", "TRACE", "BRACE", "GRACE", "SLATE", "STALE", "LEAST"}) {
    position.candidates.push_back(Word(text));
  }
  const auto information = [&](absl::string_view word) {
    return Judged(RewardSet::kPredibase, position, word).component("information");
  };
  EXPECT_NEAR(information("TRACE"), 0.8333, 5e-5);
  EXPECT_NEAR(information("SLATE"), 0.8019, 5e-5);
  EXPECT_NEAR(information("CRANE"), 0.718546, 5e-7);
  EXPECT_EQ(information("ZZZZZ"), 0);
  position.candidates.resize(1);
  EXPECT_EQ(information("TRACE"), 0);
}

TEST(Rewards, InformationBeginsAtItsStep) {
  const WordlePosition start = Position("TRACE", {});
  for (const RewardSet set : {RewardSet::kPredibase, RewardSet::kShaped, RewardSet::kGuessOnly}) {
    const WordleRewardOptions options{.set = set, .information = {.from_step = 200}};
    const std::string text = "So.</think>\n<guess>SLATE</guess>";
    const Judgement before = JudgeTurn(start, List(), text, options, {.step = 199});
    const Judgement after = JudgeTurn(start, List(), text, options, {.step = 200});
    EXPECT_EQ(before.component("information"), 0);
    EXPECT_GT(after.component("information"), 0);
    EXPECT_NEAR(after.total - before.total, after.component("information"), 1e-12);
    EXPECT_EQ(Names(before), Names(after));
  }
}

TEST(ShapedRewards, FormatCountsThoughtAndPunishesMoreAsTrainingGoesOn) {
  const WordlePosition start = Position("ALLEY", {});
  const auto format = [&](absl::string_view word, double progress, const char* before) {
    return Judged(RewardSet::kShaped, start, word, {.progress = progress}, before)
        .component("format");
  };
  EXPECT_NEAR(format("crane", 0, "x</think>"), 0.8, 1e-12);
  EXPECT_NEAR(format("crane", 0, "x"), 0.6, 1e-12);
  EXPECT_NEAR(format("ZZZZZ", 0, "x</think>"), 0.4 - 0.75, 1e-12);
  EXPECT_NEAR(format("cranes", 1, "x"), 0.2 - 1.5, 1e-12);
  EXPECT_EQ(JudgeTurn(start, List(), "CRANE", {.set = RewardSet::kShaped}, {}).total, 0);
}

TEST(ShapedRewards, FeedbackIsAsReckonedByHand) {
  const auto feedback = [](const WordlePosition& at, absl::string_view word) {
    return Judged(RewardSet::kShaped, at, word).component("feedback");
  };
  EXPECT_NEAR(feedback(Position("ALLEY", {}), "LLAMA"), 0.05 * 3, 1e-12);
  // ALLEY, CRANE: A and E yellow; C, R, N dead. SWEAT has both at new places, and S, W, T new.
  const WordlePosition crane = Position("ALLEY", {"CRANE"});
  EXPECT_NEAR(feedback(crane, "SWEAT"), 0.3 + 0.3 + 3 * 0.05, 1e-12);
  // CRANE again: both at tried places, three dead letters: below the least.
  EXPECT_NEAR(feedback(crane, "CRANE"), -1.2, 1e-12);
  // LLAMA: A at its tried place, E missing, L and M new.
  EXPECT_NEAR(feedback(crane, "LLAMA"), -0.2 - 0.4 + 2 * 0.05, 1e-12);
  // ALLEY, ABBEY: A, E and Y have their places, B is dead. ALLEY keeps three, L is new; TRACE loses
  // all of them, with four letters that are new.
  const WordlePosition abbey = Position("ALLEY", {"ABBEY"});
  EXPECT_NEAR(feedback(abbey, "ALLEY"), 3 * 0.4 + 0.05, 1e-12);
  EXPECT_NEAR(feedback(abbey, "TRACE"), -3 * 0.2 + 3 * 0.05, 1e-12);
  EXPECT_EQ(feedback(abbey, "ZZZZZ"), 0) << "words alone earn it";
}

TEST(ShapedRewards, AccuracyAndInformationAreAsReckonedByHand) {
  const auto judged = [](const WordlePosition& at, absl::string_view word) {
    return Judged(RewardSet::kShaped, at, word);
  };
  const WordlePosition start = Position("ALLEY", {});
  EXPECT_NEAR(judged(start, "ALLEY").component("accuracy"), 1, 1e-12);
  EXPECT_NEAR(judged(start, "LLAMA").component("accuracy"), 1.2 * (1 + 0.2 * 2) / 6, 1e-12);
  EXPECT_NEAR(judged(start, "CRANE").component("accuracy"), 1.2 * 0.4 / 6, 1e-12);
  // The list has every letter of CRANE, of which R, A, N and E are frequent.
  EXPECT_NEAR(judged(start, "CRANE").component("information"), 0.6 + 0.4 * 4 / 5, 1e-12);
  // After CRANE, ALLEY alone is left: of SWEAT it has E and A.
  EXPECT_NEAR(judged(Position("ALLEY", {"CRANE", "LLAMA"}), "SWEAT").component("information"),
              0.6 * 2 / 5 + 0.4 * 2 / 5, 1e-12);
}

TEST(GuessOnlyRewards, AreAsReckonedByHand) {
  const WordlePosition crane = Position("ALLEY", {"CRANE"});  // left: SWEAT, ALLEY, ABBEY
  ASSERT_EQ(crane.candidates.size(), 3u);
  const auto judged = [&](absl::string_view word) {
    return Judged(RewardSet::kGuessOnly, crane, word, {}, "");
  };
  EXPECT_THAT(Names(judged("ALLEY")),
              ElementsAre("format", "repeat", "consistency", "information", "solved"));
  EXPECT_NEAR(judged("ALLEY").total, 0.6 + 0.6 + 0.15 * std::log(3) + 2, 1e-12);
  EXPECT_NEAR(judged("sweat").total, 0.6 + 0.6 + 0.15 * std::log(1.5), 1e-12) << "ABBEY is left";
  EXPECT_NEAR(judged("CRANE").total, 0.6 - 0.3 - 0.2, 1e-12);
  EXPECT_NEAR(judged("LLAMA").total, 0.6 - 0.2 + 0.15 * std::log(3), 1e-12);
  EXPECT_NEAR(judged("ZZZZZ").total, -1.5, 1e-12);
  EXPECT_NEAR(judged("CRANES").total, -2, 1e-12);
  EXPECT_NEAR(JudgeTurn(crane, List(), "?", {.set = RewardSet::kGuessOnly}, {}).total, -2, 1e-12);
}

TEST(GuessOnlyRewards, OfASecretOutsideTheListAreFinite) {
  const WordlePosition position = Position("FUZZY", {"CRANE", "SLATE"});
  EXPECT_TRUE(position.candidates.empty());
  EXPECT_NEAR(Judged(RewardSet::kGuessOnly, position, "ALLEY").component("information"), 0, 1e-12);
}

TEST(AgreeingRewards, AreOfWordsThatMayWinAlone) {
  const WordlePosition crane = Position("ALLEY", {"CRANE"});
  const auto total = [&](absl::string_view word) {
    return Judged(RewardSet::kAgreeing, crane, word, {}, "").total;
  };
  EXPECT_THAT(Names(Judged(RewardSet::kAgreeing, crane, "ALLEY")),
              ElementsAre("consistency", "solved"));
  EXPECT_EQ(total("ALLEY"), 2);
  EXPECT_EQ(total("sweat"), 1);
  for (const char* fault : {"CRANE", "LLAMA", "ZZZZZ", "CRANES"}) EXPECT_EQ(total(fault), 0);
  EXPECT_EQ(JudgeTurn(crane, List(), "?", {.set = RewardSet::kAgreeing}, {}).total, 0);
}

TEST(Rewards, AcceptANewWordThatAgreesWithTheHistory) {
  const WordlePosition crane = Position("ALLEY", {"CRANE"});
  for (const RewardSet set :
       {RewardSet::kPredibase, RewardSet::kShaped, RewardSet::kGuessOnly, RewardSet::kAgreeing}) {
    EXPECT_TRUE(Judged(set, crane, "SWEAT").accepted());
    EXPECT_THAT(Judged(set, crane, "LLAMA").invalid, HasSubstr("does not agree"));
    EXPECT_THAT(Judged(set, crane, "CRANE").invalid, HasSubstr("before"));
    EXPECT_THAT(Judged(set, crane, "ZZZZZ").invalid, HasSubstr("not in the list"));
  }
}

TEST(Rewards, TheTotalIsTheSumOfFiniteParts) {
  SplitMix64 random(5);
  for (int i = 0; i < 2000; ++i) {
    const auto any = [&] { return List().words()[random.Below(List().words().size())].text(); };
    const WordlePosition position = Position(any(), {any().c_str(), any().c_str()});
    const RewardSet set = static_cast<RewardSet>(random.Below(4));
    const Judgement judgement = Judged(set, position, any(), {.progress = random.Uniform()});
    double sum = 0;
    for (const RewardComponent& one : judgement.components) sum += one.value;
    EXPECT_TRUE(std::isfinite(judgement.total));
    EXPECT_NEAR(judgement.total, sum, 1e-12);
  }
}

TEST(RewardSet, IsKnownByName) {
  EXPECT_EQ(*ParseRewardSet("predibase"), RewardSet::kPredibase);
  EXPECT_EQ(*ParseRewardSet("shaped"), RewardSet::kShaped);
  EXPECT_EQ(*ParseRewardSet("guess-only"), RewardSet::kGuessOnly);
  EXPECT_EQ(*ParseRewardSet("agreeing"), RewardSet::kAgreeing);
  EXPECT_THAT(std::string(ParseRewardSet("P").status().message()), HasSubstr("guess-only"));
}

TEST(LinearSchedule, FallsOverItsShareOfTraining) {
  const LinearSchedule temperature{.from = 1.0, .to = 0.3, .share = 0.3};
  EXPECT_DOUBLE_EQ(temperature.At(0), 1.0);
  EXPECT_DOUBLE_EQ(temperature.At(0.15), 0.65);
  EXPECT_DOUBLE_EQ(temperature.At(0.3), 0.3);
  EXPECT_DOUBLE_EQ(temperature.At(1), 0.3);
  EXPECT_DOUBLE_EQ((LinearSchedule{.from = 1, .to = 0.5, .share = 0}).At(0), 0.5);
  EXPECT_TRUE(CheckTemperatures(temperature).ok());
  EXPECT_FALSE(CheckTemperatures({.from = 1, .to = 0, .share = 0.3}).ok());
  EXPECT_FALSE(CheckTemperatures({.from = 1, .to = 1, .share = 1.5}).ok());
  EXPECT_FALSE(CheckTemperatures({.from = std::nan(""), .to = 1, .share = 1}).ok());
}

}  // namespace
}  // namespace espalier
