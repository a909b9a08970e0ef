#include "worker/reward/wordle_teacher.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <unordered_set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "worker/reward/wordle_verifier.h"

namespace espalier {
namespace {

// Streams of the seed.
constexpr uint64_t kSplitStream = 0, kFirstGameStream = 1;

constexpr int kGamesInVainMax = 1000;

template <typename T>
void Shuffle(std::vector<T>& values, SplitMix64& random) {
  for (size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[random.Below(i)]);
}

std::string Spell(LetterSet letters) {
  std::vector<std::string> names;
  for (int i = 0; i < 26; ++i) {
    if (letters >> i & 1) names.emplace_back(1, static_cast<char>('A' + i));
  }
  return absl::StrJoin(names, ", ");
}

// "_ _ A _ E"; empty when no letter has its place.
std::string SpellPlaces(const LetterKnowledge& known) {
  std::string text;
  bool any = false;
  for (int i = 0; i < kWordleLetters; ++i) {
    any = any || known.green[i] != 0;
    absl::StrAppend(&text, i == 0 ? "" : " ", known.green[i] == 0 ? "_" : Spell(known.green[i]));
  }
  return any ? text : "";
}

// "A not at 3, E not at 1 or 5".
std::string SpellElsewhere(const LetterKnowledge& known) {
  std::vector<std::string> parts;
  for (int letter = 0; letter < 26; ++letter) {
    const LetterSet one = LetterSet{1} << letter;
    if ((known.all_yellow() & one) == 0) continue;
    std::vector<int> places;
    for (int i = 0; i < kWordleLetters; ++i) {
      if (known.yellow[i] & one) places.push_back(i + 1);
    }
    parts.push_back(absl::StrCat(Spell(one), " not at ", absl::StrJoin(places, " or ")));
  }
  return absl::StrJoin(parts, ", ");
}

// Equal where prompts of the same form are, since these tell a history and nothing else.
std::string KeyOf(absl::Span<const Guess> history) {
  std::string key;
  for (const Guess& guess : history) {
    absl::StrAppend(&key, guess.word.text(), guess.pattern.code(), " ");
  }
  return key;
}

// The numbers of guesses before each of its turns.
std::vector<size_t> StatesOf(const History& game) {
  std::vector<size_t> states(game.size());
  std::iota(states.begin(), states.end(), size_t{0});
  return states;
}

// Games on their way to the data.
class GameWriter {
 public:
  GameWriter(const WordleDataOptions& options, absl::Span<const WordleWord> secrets,
             DataWriter& writer)
      : options_(options), form_(options.form), secrets_(secrets), writer_(writer) {}

  absl::Status AddToTrain(const History& game, WordleWord secret, SplitMix64& random) {
    for (const size_t guesses : StatesOf(game)) {
      trained_.insert(KeyOf(absl::MakeConstSpan(game).first(guesses)));
    }
    return Add(game, secret, DataSplit::kTrain, StatesOf(game), random);
  }
  // False: training has all of its states, of which a game's beginning is one.
  absl::StatusOr<bool> AddToValidation(const History& game, WordleWord secret, SplitMix64& random) {
    std::vector<size_t> own;
    for (const size_t guesses : StatesOf(game)) {
      const std::string key = KeyOf(absl::MakeConstSpan(game).first(guesses));
      if (guesses > 0 && trained_.count(key) == 0) own.push_back(guesses);
    }
    if (own.empty()) return false;
    RETURN_IF_ERROR(Add(game, secret, DataSplit::kValidation, own, random));
    return true;
  }

 private:
  absl::Status Add(const History& game, WordleWord secret, DataSplit split,
                   const std::vector<size_t>& states, SplitMix64& random) {
    const absl::Span<const Guess> guesses(game);
    for (const size_t state : states) {
      const WordleWord next = game[state].word;
      const std::string thoughts = TeachThoughts(guesses.first(state), next);
      RETURN_IF_ERROR(writer_.AddExample(split, WordlePrompt(guesses.first(state), form_),
                                         WordleCompletion(thoughts, next, form_)));
    }
    const absl::Span<const Guess> state = guesses.first(states[random.Below(states.size())]);
    WordleRecord record{.secret = secret, .history = History(state.begin(), state.end())};
    if (options_.erring > 0) {
      ASSIGN_OR_RETURN(record.history, ErringState(split, secret, random));
    }
    return writer_.AddPrompt(split, {.prompt = SpellPrompt(WordlePrompt(record.history, form_)),
                                     .record = WriteWordleRecord(record)});
  }

  // One for validation is none of training: an erring player has more than enough of them.
  absl::StatusOr<History> ErringState(DataSplit split, WordleWord secret, SplitMix64& random) {
    const bool train = split == DataSplit::kTrain;
    for (int i = 0; i < kGamesInVainMax; ++i) {
      const size_t guesses = random.Below(kWordleTurns - (train ? 0 : 1)) + (train ? 0 : 1);
      History state = ErringGame(options_.erring, guesses, secret, secrets_, random);
      if (train) trained_.insert(KeyOf(state));
      if (train || trained_.count(KeyOf(state)) == 0) return state;
    }
    return absl::InvalidArgumentError(
        absl::StrCat(kGamesInVainMax,
                     " positions of players who err in a row are in training; ask for fewer "
                     "games to train on, or allow more words (--words, --secrets)"));
  }

  const WordleDataOptions& options_;
  const PromptForm form_;
  const absl::Span<const WordleWord> secrets_;
  DataWriter& writer_;
  std::unordered_set<std::string> trained_;  // keys of states
};

// Secrets of the two splits, of which those of validation are the first in the order of the seed.
struct SplitSecrets {
  std::vector<WordleWord> train, validation;
};
absl::StatusOr<SplitSecrets> Divide(absl::Span<const WordleWord> all,
                                    const WordleDataOptions& options) {
  const DataAmount& amount = options.amount;
  std::vector<WordleWord> secrets(all.begin(), all.end());
  if (options.hold_out == WordleHoldOut::kPositions) return SplitSecrets{secrets, secrets};
  SplitMix64 random(amount.seed, kSplitStream);
  Shuffle(secrets, random);
  const double part = static_cast<double>(amount.validation) /
                      static_cast<double>(amount.train + amount.validation);
  const size_t held_out =
      amount.validation == 0
          ? 0
          : std::max<size_t>(1, static_cast<size_t>(part * static_cast<double>(secrets.size())));
  if (held_out >= secrets.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(secrets.size(), " secret is too few to hold some out for validation"));
  }
  const auto border = secrets.begin() + static_cast<ptrdiff_t>(held_out);
  return SplitSecrets{.train = {border, secrets.end()}, .validation = {secrets.begin(), border}};
}

}  // namespace

absl::StatusOr<WordleHoldOut> ParseWordleHoldOut(absl::string_view name) {
  if (name == "secrets") return WordleHoldOut::kSecrets;
  if (name == "positions") return WordleHoldOut::kPositions;
  return absl::InvalidArgumentError(
      absl::StrCat("--hold-out is ", name, "; allowed: secrets, positions"));
}

WordleWord TeachGuess(const WordleTeacher& teacher, absl::Span<const WordleWord> candidates,
                      SplitMix64& random) {
  WordleWord best = candidates[random.Below(candidates.size())];
  double best_bits = teacher.considered > 1 ? InformationBits(best, candidates) : 0;
  for (int i = 1; i < teacher.considered && candidates.size() > 2; ++i) {
    const WordleWord word = candidates[random.Below(candidates.size())];
    const double bits = InformationBits(word, candidates);
    if (bits > best_bits) {
      best = word;
      best_bits = bits;
    }
  }
  return best;
}

std::string TeachThoughts(absl::Span<const Guess> history, WordleWord guess) {
  if (history.empty()) return absl::StrCat("Nothing is known yet. I try ", guess.text(), ".");
  const LetterKnowledge known = KnowledgeOf(history);
  const std::string places = SpellPlaces(known), elsewhere = SpellElsewhere(known);
  std::string text;
  if (!places.empty()) absl::StrAppend(&text, "Places: ", places, ". ");
  if (!elsewhere.empty()) absl::StrAppend(&text, "Elsewhere: ", elsewhere, ". ");
  if (known.dead != 0) absl::StrAppend(&text, "Not there: ", Spell(known.dead), ". ");
  return absl::StrCat(text, guess.text(), " agrees.");
}

History TeachGame(const WordleTeacher& teacher, WordleWord secret,
                  absl::Span<const WordleWord> secrets, SplitMix64& random) {
  History game;
  std::vector<WordleWord> candidates(secrets.begin(), secrets.end());
  while (game.size() < kWordleTurns && (game.empty() || !game.back().pattern.solved())) {
    const WordleWord guess = TeachGuess(teacher, candidates, random);
    game.push_back({.word = guess, .pattern = Feedback(secret, guess)});
    candidates = Candidates(candidates, {game.back()});
  }
  return game;
}

History ErringGame(double erring, size_t guesses, WordleWord secret,
                   absl::Span<const WordleWord> secrets, SplitMix64& random) {
  History game;
  const auto may_be = [&](WordleWord word) {
    return word != secret && std::none_of(game.begin(), game.end(),
                                          [&](const Guess& guess) { return guess.word == word; });
  };
  while (game.size() < guesses) {
    std::vector<WordleWord> words;
    const bool errs = random.Uniform() < erring;
    for (const WordleWord word : secrets) {
      if (may_be(word) && (errs || Agrees(word, game))) words.push_back(word);
    }
    if (words.empty()) {  // the secret alone agrees
      std::copy_if(secrets.begin(), secrets.end(), std::back_inserter(words), may_be);
    }
    const WordleWord word = words[random.Below(words.size())];
    game.push_back({.word = word, .pattern = Feedback(secret, word)});
  }
  return game;
}

absl::Status MakeWordleData(const Vocabulary& vocabulary, const WordleDataOptions& options,
                            DataWriter& writer) {
  const DataAmount& amount = options.amount;
  RETURN_IF_ERROR(CheckAmount(amount));
  const absl::Span<const WordleWord> all = vocabulary.secrets.words();
  ASSIGN_OR_RETURN(const SplitSecrets secrets, Divide(all, options));
  if (options.erring > 0 && all.size() < 2 * kWordleTurns) {
    return absl::InvalidArgumentError(absl::StrCat(
        "there are ", all.size(), " secrets, too few for games of players who err (--erring): ",
        2 * kWordleTurns, " at least"));
  }
  GameWriter games(options, all, writer);
  int64_t game = 0;
  for (; game < amount.train; ++game) {
    SplitMix64 random(amount.seed, kFirstGameStream + static_cast<uint64_t>(game));
    const WordleWord secret = secrets.train[random.Below(secrets.train.size())];
    const History played = TeachGame(options.teacher, secret, all, random);
    RETURN_IF_ERROR(games.AddToTrain(played, secret, random));
  }
  int in_vain = 0;
  for (int64_t made = 0; made < amount.validation; ++game) {
    SplitMix64 random(amount.seed, kFirstGameStream + static_cast<uint64_t>(game));
    const WordleWord secret = secrets.validation[random.Below(secrets.validation.size())];
    const History played = TeachGame(options.teacher, secret, all, random);
    ASSIGN_OR_RETURN(const bool added, games.AddToValidation(played, secret, random));
    made += added ? 1 : 0;
    in_vain = added ? 0 : in_vain + 1;
    if (in_vain == kGamesInVainMax) {
      return absl::InvalidArgumentError(absl::StrCat(
          "asked for ", amount.validation, " games for validation, and after ", made, " of them ",
          in_vain, " in a row had no state that training has not; ask for fewer games to train on",
          ", or allow more words (--words, --secrets)"));
    }
  }
  return absl::OkStatus();
}

}  // namespace espalier
