// What judging a turn of Wordle costs, with a list as large as that of the game and histories of
// several lengths: the candidates that are left, the information of a guess, and a whole judgement.
// One JSON line a figure.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "worker/reward/word_list.h"
#include "worker/reward/wordle.h"
#include "worker/reward/wordle_verifier.h"

namespace espalier {
namespace {

using Json = nlohmann::ordered_json;

// Words of letters that are about as frequent as in English.
std::vector<WordleWord> MadeUpWords(size_t count) {
  const std::string letters =
      "EEEEEEEEAAAAAAAARRRRRROOOOOTTTTTLLLLIIIISSSSSNNNNCCUUYYDDHHPPMMGGBBFKWVZXQJ";
  SplitMix64 random(1);
  std::vector<WordleWord> words;
  for (;;) {
    std::string text;
    for (int i = 0; i < kWordleLetters; ++i) text += letters[random.Below(letters.size())];
    words.push_back(*WordleWord::Parse(text));
    if (words.size() < count) continue;
    std::sort(words.begin(), words.end());
    words.erase(std::unique(words.begin(), words.end()), words.end());
    if (words.size() >= count) return words;
  }
}

double MedianMicroseconds(int rounds, const std::function<void()>& work) {
  std::vector<double> times;
  for (int i = 0; i < rounds; ++i) {
    const auto start = std::chrono::steady_clock::now();
    work();
    const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - start;
    times.push_back(time.count());
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

void Print(const std::string& what, size_t words, size_t history, double microseconds) {
  std::cout << Json{{"benchmark", "reward"},
                    {"what", what},
                    {"words", words},
                    {"history", history},
                    {"us", microseconds}}
            << std::endl;
}

void RunHistory(const std::vector<WordleWord>& words, size_t guesses, int rounds) {
  WordleRecord record{.secret = words[words.size() / 3]};
  SplitMix64 random(guesses);
  while (record.history.size() < guesses) {
    const WordleWord word = words[random.Below(words.size())];
    record.history.push_back({.word = word, .pattern = Feedback(record.secret, word)});
  }
  std::vector<WordleWord> candidates;
  Print("candidates", words.size(), guesses,
        MedianMicroseconds(rounds, [&] { candidates = Candidates(words, record.history); }));
  const WordleWord guess = words[words.size() / 2];
  double bits = 0;
  Print("information", words.size(), guesses,
        MedianMicroseconds(rounds, [&] { bits += InformationBits(guess, candidates); }));
  const WordList list = *WordList::Of(words);
  const auto verifier = MakeWordleVerifier({.guesses = list, .secrets = list}, {});
  const std::string json = WriteWordleRecord(record);
  const std::string text = absl::StrCat("So.</think>\n<guess>", guess.text(), "</guess>");
  Print("judgement", words.size(), guesses, MedianMicroseconds(rounds, [&] {
          bits += verifier->Judge({{.record = json, .text = text}}, {})->front().total;
        }));
  if (bits < 0) std::cerr << "nothing was told\n";  // what is not used is not computed
}

}  // namespace
}  // namespace espalier

int main(int argc, char** argv) {
  CLI::App app("What judging a turn of Wordle costs.");
  int rounds = 101;
  size_t words = 12920;
  app.add_option("--rounds", rounds, "rounds of which the median is taken");
  app.add_option("--words", words, "words of the list, made up");
  CLI11_PARSE(app, argc, argv);
  const std::vector<espalier::WordleWord> list = espalier::MadeUpWords(words);
  for (const size_t guesses : {0, 1, 2, 5}) espalier::RunHistory(list, guesses, rounds);
  return 0;
}
