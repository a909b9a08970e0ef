#include "worker/reward/wordle_teacher.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "worker/reward/wordle_verifier.h"

namespace espalier {
namespace {

// Streams of the seed.
constexpr uint64_t kSplitStream = 0, kFirstGameStream = 1;

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

absl::Status WriteGame(const History& game, WordleWord secret, DataSplit split, PromptForm form,
                       SplitMix64& random, DataWriter& writer) {
  const absl::Span<const Guess> guesses(game);
  for (size_t i = 0; i < game.size(); ++i) {
    const absl::Span<const Guess> before = guesses.first(i);
    const std::string thoughts = TeachThoughts(before, game[i].word);
    RETURN_IF_ERROR(writer.AddExample(split, WordlePrompt(before, form),
                                      WordleCompletion(thoughts, game[i].word, form)));
  }
  const absl::Span<const Guess> state = guesses.first(random.Below(game.size()));
  const WordleRecord record{.secret = secret, .history = History(state.begin(), state.end())};
  return writer.AddPrompt(split, {.prompt = SpellPrompt(WordlePrompt(state, form)),
                                  .record = WriteWordleRecord(record)});
}

}  // namespace

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

absl::Status MakeWordleData(const Vocabulary& vocabulary, const WordleDataOptions& options,
                            DataWriter& writer) {
  const DataAmount& amount = options.amount;
  RETURN_IF_ERROR(CheckAmount(amount));
  const absl::Span<const WordleWord> all = vocabulary.secrets.words();
  std::vector<WordleWord> secrets(all.begin(), all.end());
  SplitMix64 split_random(amount.seed, kSplitStream);
  Shuffle(secrets, split_random);
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
  const std::vector<WordleWord> of_split[] = {
      {secrets.begin() + static_cast<ptrdiff_t>(held_out), secrets.end()},
      {secrets.begin(), secrets.begin() + static_cast<ptrdiff_t>(held_out)}};
  for (int64_t game = 0; game < amount.train + amount.validation; ++game) {
    const DataSplit split = game < amount.train ? DataSplit::kTrain : DataSplit::kValidation;
    const std::vector<WordleWord>& own = of_split[static_cast<size_t>(split)];
    SplitMix64 random(amount.seed, kFirstGameStream + static_cast<uint64_t>(game));
    const WordleWord secret = own[random.Below(own.size())];
    const History played = TeachGame(options.teacher, secret, all, random);
    RETURN_IF_ERROR(WriteGame(played, secret, split, options.form, random, writer));
  }
  return absl::OkStatus();
}

}  // namespace espalier
