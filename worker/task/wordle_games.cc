#include "worker/task/wordle_games.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/observe/log.h"
#include "worker/reward/prompts.h"
#include "worker/reward/wordle_verifier.h"
#include "worker/rollout/job_rollouts.h"

namespace espalier {
namespace {

// The form in which a prompt asks for the turn that its record has.
absl::StatusOr<PromptForm> FormOf(const RolloutPrompt& prompt, const EncodeText& encode) {
  ASSIGN_OR_RETURN(const WordleRecord record, ParseWordleRecord(prompt.record));
  for (const PromptForm form : {PromptForm::kPlain, PromptForm::kChat, PromptForm::kGuess}) {
    ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                     encode(SpellPrompt(WordlePrompt(record.history, form))));
    if (ids == prompt.ids) return form;
  }
  return absl::InvalidArgumentError(
      "evaluate.games plays whole games, and the data's prompts are in no form of `espalier data "
      "make wordle`, so that nobody knows how a next turn is asked for; set evaluate.games to 0");
}

// Different ones, in the order of the prompts.
absl::StatusOr<std::vector<WordleWord>> SecretsOf(const std::vector<RolloutPrompt>& prompts) {
  std::vector<WordleWord> secrets;
  std::set<WordleWord> seen;
  for (const RolloutPrompt& prompt : prompts) {
    ASSIGN_OR_RETURN(const WordleRecord record, ParseWordleRecord(prompt.record));
    if (seen.insert(record.secret).second) secrets.push_back(record.secret);
  }
  return secrets;
}

void TellWhatIsLeft(const WordleMatch& match, int64_t games) {
  const auto left = static_cast<int64_t>(match.secrets.size());
  if (match.practised) {
    LogInfo(absl::StrCat("training has ", match.trained,
                         " of the secrets of validation, most of them; games are played on all"));
  } else if (match.trained > 0) {
    LogInfo(absl::StrCat("training has ", match.trained,
                         " of the secrets of validation; no game is played on them"));
  }
  if (left < games) {
    LogWarning(absl::StrCat("evaluate.games is ", games, ", and validation has ", left, " secrets",
                            match.practised ? "" : " that training has not", "; evaluations play ",
                            left, " games"));
  }
}

// The first that some game has before it.
size_t NextTurn(const std::vector<WordleGame>& games) {
  size_t turn = kWordleTurns;
  for (const WordleGame& game : games) {
    if (!game.over()) turn = std::min(turn, game.turns().size());
  }
  return turn;
}

// The same names, as constants of figures that are shown.
absl::string_view NameOf(absl::string_view figure) {
  const auto it = std::find(kTaskFigures.begin(), kTaskFigures.end(), figure);
  return it == kTaskFigures.end() ? absl::string_view() : *it;
}

}  // namespace

absl::StatusOr<WordleMatch> MakeWordleMatch(Vocabulary vocabulary, const MatchPrompts& prompts,
                                            int64_t games, const EncodeText& encode) {
  WordleMatch match{.vocabulary = std::move(vocabulary), .secrets = {}, .prompt = {}};
  ASSIGN_OR_RETURN(const std::vector<WordleWord> trained, SecretsOf(prompts.training));
  ASSIGN_OR_RETURN(const std::vector<WordleWord> held_out, SecretsOf(prompts.validation));
  for (const WordleWord secret : held_out) {
    const bool is_trained = std::find(trained.begin(), trained.end(), secret) != trained.end();
    is_trained ? void(++match.trained) : match.secrets.push_back(secret);
  }
  // A few that training happened not to meet are no split that holds secrets out.
  match.practised = match.trained > static_cast<int64_t>(match.secrets.size());
  if (match.practised) match.secrets = held_out;
  if (static_cast<int64_t>(match.secrets.size()) > games) {
    match.secrets.resize(static_cast<size_t>(games));
  }
  TellWhatIsLeft(match, games);
  if (prompts.validation.empty()) return match;
  ASSIGN_OR_RETURN(const PromptForm form, FormOf(prompts.validation[0], encode));
  match.prompt = [form, encode](const History& history) {
    return encode(SpellPrompt(WordlePrompt(history, form)));
  };
  return match;
}

absl::Status CheckRoomForGames(const WordleMatch& match, int64_t positions,
                               int64_t max_new_tokens) {
  if (match.secrets.empty()) return absl::OkStatus();
  const WordleWord secret = match.secrets[0];
  const absl::Span<const WordleWord> words = match.vocabulary.guesses.words();
  History longest;
  for (size_t i = 0; longest.size() + 1 < kWordleTurns; ++i) {
    const WordleWord guess = words[i % words.size()];
    if (guess == secret && words.size() > 1) continue;  // would have ended it
    longest.push_back({.word = guess, .pattern = Feedback(secret, guess)});
  }
  ASSIGN_OR_RETURN(const std::vector<int32_t> ids, match.prompt(longest));
  const int64_t needed = static_cast<int64_t>(ids.size()) + max_new_tokens;
  if (needed <= positions) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "evaluate.games plays whole games, and before the last turn of one the prompt has ",
      ids.size(), " tokens; with train.rollout.max_new_tokens ", max_new_tokens, " that is ",
      needed, ", and the model has ", positions,
      " positions; lower max_new_tokens, take a model of more positions, or set evaluate.games to "
      "0"));
}

std::vector<WordleGame> GamesOf(const WordleMatch& match) {
  std::vector<WordleGame> games;
  for (const WordleWord secret : match.secrets) {
    games.emplace_back(secret, match.vocabulary.guesses);
  }
  return games;
}

bool AreOver(const std::vector<WordleGame>& games) {
  return std::all_of(games.begin(), games.end(),
                     [](const WordleGame& game) { return game.over(); });
}

absl::StatusOr<bool> PlayTurns(const WordleMatch& match, const TrainingMoment& moment,
                               const Decoder& decoder, const RolloutAround& around,
                               PacedRollouts& source, std::vector<WordleGame>& games) {
  RolloutOrder order{.moment = moment, .prompts = {}, .judged = false};
  order.sample = GreedySampling();
  const size_t turn = NextTurn(games);
  for (size_t i = 0; i < games.size(); ++i) {
    if (static_cast<int64_t>(order.prompts.size()) == source.order_size()) break;
    if (games[i].over() || games[i].turns().size() > turn) continue;
    ASSIGN_OR_RETURN(std::vector<int32_t> ids, match.prompt(games[i].history()));
    order.prompts.push_back({static_cast<int64_t>(i), std::move(ids), ""});
  }
  ASSIGN_OR_RETURN(const std::optional<Rollouts> made, source.Sample(decoder, order, around));
  if (!made) return false;
  for (const Rollout& one : made->all) {
    const int64_t game = order.prompts[static_cast<size_t>(one.prompt)].id;
    games[static_cast<size_t>(game)].Play(one.text);
  }
  return true;
}

std::vector<TaskFigure> FiguresOf(const WordleMatch& match, const std::vector<WordleGame>& games) {
  GameTally tally(match.vocabulary.secrets.words());
  for (const WordleGame& game : games) tally.Add(game);
  std::vector<TaskFigure> figures;
  for (const GameFigure& one : tally.Figures()) figures.push_back({NameOf(one.name), one.value});
  return figures;
}

}  // namespace espalier
