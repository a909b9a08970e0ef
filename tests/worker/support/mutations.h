// Seeded damage for what is parsed, and how long to go on with it. Used by tests/fuzz,
// tests/worker/data and tests/worker/serve. One thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace espalier {

// True `rounds` times, or for as many seconds as the environment variable ESPALIER_FUZZ_SECONDS
// says. The seed of a round is its number, or begins at ESPALIER_FUZZ_SEED.
class FuzzRounds {
 public:
  explicit FuzzRounds(uint64_t rounds) : rounds_(rounds) {
    seed_ = Variable("ESPALIER_FUZZ_SEED");
    if (const uint64_t seconds = Variable("ESPALIER_FUZZ_SECONDS"); seconds > 0) {
      rounds_ = UINT64_MAX;
      end_ = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
    }
  }
  bool Next() {
    if (done_ == rounds_ || std::chrono::steady_clock::now() > end_) return false;
    ++done_;
    random_.seed(seed_++);
    return true;
  }
  uint64_t seed() const { return seed_ - 1; }
  std::mt19937_64& random() { return random_; }

 private:
  static uint64_t Variable(const char* name) {
    const char* text = std::getenv(name);
    uint64_t value = 0;
    return text != nullptr && absl::SimpleAtoi(text, &value) ? value : 0;
  }
  uint64_t rounds_, done_ = 0, seed_ = 0;
  std::chrono::steady_clock::time_point end_ = std::chrono::steady_clock::time_point::max();
  std::mt19937_64 random_;
};

// The text with one to eight places changed: bytes flipped, parts removed, doubled or moved, and
// `words` put in.
inline std::string Mutated(std::string text, absl::Span<const absl::string_view> words,
                           std::mt19937_64& random) {
  for (uint64_t left = random() % 8 + 1; left > 0; --left) {
    const size_t at = text.empty() ? 0 : random() % text.size();
    const size_t size = random() % 16 == 0 ? random() % 4096 : random() % 12;
    const std::string part = text.substr(at, size);
    switch (random() % 5) {
      case 0:
        if (!text.empty()) text[at] = static_cast<char>(random());
        break;
      case 1:
        text.erase(at, size);
        break;
      case 2:
        text.insert(at, part);
        break;
      case 3:
        text.insert(text.empty() ? 0 : random() % text.size(), part);
        break;
      default: {
        const absl::string_view word = words[random() % words.size()];
        text.insert(at, word.data(), word.size());
      }
    }
  }
  return text;
}

}  // namespace espalier
