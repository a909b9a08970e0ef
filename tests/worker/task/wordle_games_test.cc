// Games that a model plays have the figures of its turns, and ask as the data's prompts do.
#include "worker/task/wordle_games.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>

#include "common/base/status_macros.h"
#include "tests/worker/support/tiny_model.h"
#include "worker/collective/in_process.h"
#include "worker/reward/prompts.h"
#include "worker/reward/wordle_verifier.h"

namespace espalier {
namespace {

WordleWord Word(const char* text) { return *WordleWord::Parse(text); }

Vocabulary SmallVocabulary() {
  const auto list = [] {
    return *WordList::Of({Word("CRANE"), Word("ALLEY"), Word("SWEAT"), Word("STORM")});
  };
  return {.guesses = list(), .secrets = list()};
}

// A letter is a token.
absl::StatusOr<std::vector<int32_t>> Letters(const std::string& text) {
  return std::vector<int32_t>(text.begin(), text.end());
}

RolloutPrompt PromptOf(const char* secret, const History& history, PromptForm form) {
  const WordleRecord record{.secret = Word(secret), .history = history};
  return {.id = 0,
          .ids = *Letters(SpellPrompt(WordlePrompt(history, form))),
          .record = WriteWordleRecord(record)};
}

// Says the next of its guesses, by the turn, in every game.
class Player final : public RolloutSource {
 public:
  explicit Player(std::vector<std::string> guesses) : guesses_(std::move(guesses)) {}
  // All games, from where they are, or until the ranks are called away.
  absl::StatusOr<std::optional<std::vector<TaskFigure>>> Play(const WordleMatch& match,
                                                              const RolloutAround& around = {}) {
    const TinyModel unused(TinyModelConfig());
    if (played_.empty()) played_ = GamesOf(match);
    while (!AreOver(played_)) {
      ASSIGN_OR_RETURN(const bool played,
                       PlayTurns(match, {}, *unused.decoder, around, paced_, played_));
      if (!played) return std::nullopt;
    }
    return FiguresOf(match, played_);
  }
  absl::StatusOr<std::optional<Rollouts>> Sample(const Decoder&, const RolloutOrder& order,
                                                 const RolloutAround& around) override {
    if (around.called_away && around.called_away()) return std::nullopt;
    EXPECT_FALSE(order.judged);
    EXPECT_EQ(order.sample.temperature, 0);
    games_.push_back(order.prompts.size());
    prompts_.emplace_back(order.prompts[0].ids.begin(), order.prompts[0].ids.end());
    Rollouts rollouts;
    for (size_t i = 0; i < order.prompts.size(); ++i) {
      Rollout one;
      one.prompt = static_cast<int64_t>(i);
      one.text = "A thought.</think>\n<guess>" + guesses_[games_.size() - 1] + "</guess>";
      rollouts.all.push_back(one);
    }
    return rollouts;
  }
  std::vector<std::string> guesses_;
  std::vector<size_t> games_;         // that were asked for a turn
  std::vector<std::string> prompts_;  // of the first of them
  std::vector<WordleGame> played_;

 private:
  const std::vector<std::unique_ptr<Collective>> world_ = InProcessGroup(1, absl::Seconds(30));
  ProgressBoard board_;
  PacedRollouts paced_{{*world_[0], RealClock(), board_}, {}, *this};
};

std::map<std::string, double> Figures(const WordleMatch& match, Player& player) {
  const auto found = player.Play(match);
  EXPECT_TRUE(found.ok() && found->has_value()) << found.status();
  std::map<std::string, double> figures;
  for (const TaskFigure& one : **found) figures[std::string(one.name)] = one.value;
  return figures;
}

TEST(WordleGames, ArePlayedTurnByTurnUntilTheyAreOver) {
  const std::vector<RolloutPrompt> prompts = {
      PromptOf("STORM", {}, PromptForm::kPlain), PromptOf("STORM", {}, PromptForm::kPlain),
      PromptOf("ALLEY", {}, PromptForm::kPlain), PromptOf("SWEAT", {}, PromptForm::kPlain)};
  const auto match = MakeWordleMatch(SmallVocabulary(), {{}, prompts}, 3, Letters);
  ASSERT_TRUE(match.ok()) << match.status();
  EXPECT_EQ(match->secrets, (std::vector<WordleWord>{Word("STORM"), Word("ALLEY"), Word("SWEAT")}));
  Player player({"CRANE", "STORM", "CRANE", "xy", "ALLEY", "FGHIJ"});
  std::map<std::string, double> figures = Figures(*match, player);
  EXPECT_EQ(player.games_, (std::vector<size_t>{3, 3, 2, 2, 2, 1}));
  const History first = {
      {.word = Word("CRANE"), .pattern = Feedback(Word("STORM"), Word("CRANE"))}};
  EXPECT_EQ(player.prompts_[1], SpellPrompt(WordlePrompt(first, PromptForm::kPlain)));
  EXPECT_NEAR(figures["solve_rate"], 2.0 / 3, 1e-12);
  EXPECT_NEAR(figures["mean_turns_solved"], 3.5, 1e-12);
  EXPECT_NEAR(figures["mean_turns"], 14.0 / 3, 1e-12);
  EXPECT_NEAR(figures["parse_fail_rate"], 2.0 / 13, 1e-12);
  EXPECT_NEAR(figures["repeat_rate"], 2.0 / 13, 1e-12);
  EXPECT_NEAR(figures["out_of_vocabulary_rate"], 1.0 / 13, 1e-12);
  EXPECT_GT(figures["mean_log_reduction"], 0);
  EXPECT_GT(figures["mean_fraction_reduction"], 0);
  EXPECT_EQ(figures.count(""), 0u) << "a figure that is not shown";
}

// The longest is that of the last turn, however short those of the data are.
TEST(WordleGames, NeedRoomForTheLastTurn) {
  const auto match = MakeWordleMatch(SmallVocabulary(),
                                     {{}, {PromptOf("ALLEY", {}, PromptForm::kGuess)}}, 1, Letters);
  ASSERT_TRUE(match.ok()) << match.status();
  History before;  // the last turn but one
  for (const char* guess : {"CRANE", "STORM", "SWEAT", "CRANE"}) {
    before.push_back({.word = Word(guess), .pattern = Feedback(Word("ALLEY"), Word(guess))});
  }
  const auto positions = static_cast<int64_t>(match->prompt(before)->size()) + 16;
  EXPECT_TRUE(CheckRoomForGames(*match, 2 * positions, 16).ok());
  const absl::Status none = CheckRoomForGames(*match, positions, 16);
  EXPECT_EQ(none.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(none.message()),
              testing::HasSubstr(absl::StrCat("the model has ", positions, " positions")));
}

TEST(WordleGames, AskInTheFormOfTheData) {
  const History history = {
      {.word = Word("CRANE"), .pattern = Feedback(Word("ALLEY"), Word("CRANE"))}};
  for (const PromptForm form : {PromptForm::kPlain, PromptForm::kChat, PromptForm::kGuess}) {
    const auto match =
        MakeWordleMatch(SmallVocabulary(), {{}, {PromptOf("ALLEY", history, form)}}, 1, Letters);
    ASSERT_TRUE(match.ok()) << match.status();
    EXPECT_EQ(*match->prompt({}), *Letters(SpellPrompt(WordlePrompt({}, form))));
  }
  RolloutPrompt foreign = PromptOf("ALLEY", {}, PromptForm::kPlain);
  foreign.ids.push_back('!');
  EXPECT_THAT(
      std::string(
          MakeWordleMatch(SmallVocabulary(), {{}, {foreign}}, 1, Letters).status().message()),
      testing::HasSubstr("evaluate.games to 0"));
}

TEST(WordleGames, AreOnSecretsThatTrainingDoesNotHave) {
  const auto of = [](std::vector<const char*> secrets) {
    std::vector<RolloutPrompt> prompts;
    for (const char* secret : secrets) {
      prompts.push_back(PromptOf(secret, {}, PromptForm::kPlain));
    }
    return prompts;
  };
  const std::vector<RolloutPrompt> training = of({"CRANE", "SWEAT", "CRANE"});
  const auto match = MakeWordleMatch(
      SmallVocabulary(), {training, of({"SWEAT", "ALLEY", "SWEAT", "STORM"})}, 4, Letters);
  ASSERT_TRUE(match.ok()) << match.status();
  EXPECT_EQ(match->secrets, (std::vector<WordleWord>{Word("ALLEY"), Word("STORM")}));
  EXPECT_EQ(match->trained, 1);
  EXPECT_FALSE(match->practised);
}

// Data whose validation holds out positions alone: games are told apart by what is guessed in them.
TEST(WordleGames, AreOnThoseThatTrainingHasWhereItHasMost) {
  const std::vector<RolloutPrompt> training{PromptOf("CRANE", {}, PromptForm::kPlain),
                                            PromptOf("SWEAT", {}, PromptForm::kPlain),
                                            PromptOf("ALLEY", {}, PromptForm::kPlain)};
  std::vector<RolloutPrompt> validation = training;
  validation.insert(validation.begin(), PromptOf("STORM", {}, PromptForm::kPlain));
  const auto match = MakeWordleMatch(SmallVocabulary(), {training, validation}, 2, Letters);
  ASSERT_TRUE(match.ok()) << match.status();
  EXPECT_EQ(match->secrets, (std::vector<WordleWord>{Word("STORM"), Word("CRANE")}));
  EXPECT_TRUE(match->practised);
}

TEST(WordleGames, AreGivenUpWhenTheRanksAreCalledAway) {
  const auto match = MakeWordleMatch(SmallVocabulary(),
                                     {{}, {PromptOf("ALLEY", {}, PromptForm::kPlain)}}, 1, Letters);
  Player player({"CRANE"});
  RolloutAround around;
  around.called_away = [] { return true; };
  const auto found = player.Play(*match, around);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_FALSE(found->has_value());
}

// Also between the orders of a turn, which has more games than an order may.
TEST(WordleGames, GoOnWhereTheRanksWereCalledAway) {
  auto match = MakeWordleMatch(SmallVocabulary(), {{}, {PromptOf("ALLEY", {}, PromptForm::kPlain)}},
                               1, Letters);
  ASSERT_TRUE(match.ok()) << match.status();
  match->secrets.assign(10, Word("ALLEY"));
  Player player({"CRANE", "CRANE", "ALLEY", "ALLEY"});
  for (size_t orders = 1; orders < 3; ++orders) {
    RolloutAround around;
    around.called_away = [&] { return player.games_.size() == orders; };
    const auto found = player.Play(*match, around);
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_FALSE(found->has_value());
  }
  std::map<std::string, double> figures = Figures(*match, player);
  EXPECT_EQ(player.games_, (std::vector<size_t>{8, 2, 8, 2}));
  EXPECT_EQ(figures["solve_rate"], 1);
  EXPECT_EQ(figures["mean_turns_solved"], 2);
}

}  // namespace
}  // namespace espalier
