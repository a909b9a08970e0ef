// Sampler: chooses the ids of one sequence from a decoder's logits: greedy, temperature, top-k,
// top-p, min-p, penalties for what was said. Its randomness is a function of the seed and of the
// number of the choice, so a sequence is the same whatever is generated beside it. Used by
// batch_generator.h, worker/rollout and worker/serve. One thread at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/types/span.h"

namespace espalier {

// In this order: penalties, temperature, top_k, top_p, min_p. Equal logits are ordered by id.
struct SampleOptions {
  double temperature = 1;  // logits are divided by it; 0: always the likeliest id
  int64_t top_k = 0;       // only the k likeliest ids; 0: all
  double top_p = 1;        // only the likeliest ids that together reach this probability
  double min_p = 0;        // only ids at least this part as likely as the likeliest
  // Logits of ids in the prompt or the answer are divided by it, those below 0 multiplied
  // (Keskar et al. 2019, section 4.1); 1: none.
  double repetition_penalty = 1;
  // Taken from the logits of ids in the answer: once, and for each time that they are there.
  double presence_penalty = 0;
  double frequency_penalty = 0;
};

// INVALID_ARGUMENT names what is out of range.
absl::Status CheckSampleOptions(const SampleOptions& options);

// The seed of one of several samples of one of several prompts, which shares nothing with others.
uint64_t SampleSeed(uint64_t seed, uint64_t prompt, uint64_t sample);

class Sampler {
 public:
  Sampler(const SampleOptions& options, uint64_t seed, absl::Span<const int32_t> prompt);

  // The next id, by `logits`, one for each id, which are overwritten. The draw goes through what
  // the limits leave in the order of ids: logits that differ by a rounding give another id only
  // where the draw is as near to a border. Nothing where logits are not numbers.
  std::optional<int32_t> Next(absl::Span<float> logits);

  // What the next id is drawn by where nothing but a temperature counts, as a device can do it.
  struct Plain {
    double temperature;
    double falls_on;  // in [0, 1), of the sum of the weights
  };
  std::optional<Plain> NextPlain() const;
  // It was drawn so.
  void TookPlain() { ++drawn_; }

 private:
  void Penalise(absl::Span<float> logits) const;
  int32_t Draw(absl::Span<const float> logits, float best);

  SampleOptions options_;
  uint64_t seed_;
  uint64_t drawn_ = 0;
  bool counts_ = false;                       // whether a penalty asks for what follows
  absl::flat_hash_map<int32_t, int> answer_;  // how often an id was chosen; 0: in the prompt
  std::vector<int32_t> ids_;                  // of Draw
  std::vector<double> weights_;
};

}  // namespace espalier
