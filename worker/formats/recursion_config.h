// RecursionConfig: what a tiny recursive model is besides its layers, as v1::RecursionSpec has it:
// a part of DecoderConfig. Used by decoder_config.h. Plain data.
#pragma once

#include <cstdint>

namespace espalier {

struct RecursionConfig {
  // Of what comes before the layers.
  enum class Positions {
    kRope,     // queries and keys are turned
    kLearned,  // a vector of each position is added to the embedding
    kNone,
  };

  int64_t high_cycles = 3;
  int64_t low_cycles = 6;  // in each of those
  int64_t halt_max_steps = 16;
  double halt_exploration = 0.1;
  bool halt_continue = false;
  bool halt_reads_last = false;  // the last position that counts, not the first
  Positions positions = Positions::kRope;
  bool mix_positions = false;  // by a feed-forward part over them, in place of attention
  bool causal = false;
  bool stablemax = true;
  double expansion = 4;

  // Passes through all layers in a supervision step; the last low_cycles + 1 with gradients.
  int64_t Passes() const { return high_cycles * (low_cycles + 1); }
  // Width of a feed-forward part over `input` numbers: two thirds of `expansion` times as many, up
  // to the next multiple of 256.
  int64_t Inner(int64_t input) const;

  friend bool operator==(const RecursionConfig&, const RecursionConfig&) = default;
};

}  // namespace espalier
