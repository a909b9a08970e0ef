// PromptRows: which prompts the rows of a cache still hold, so that a prompt that begins like one
// of them is not computed again: many samples of one prompt, one system message, the turns of a
// conversation. Used by batch_generator.h. One thread.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace espalier {

// What a row holds first: a prompt's positions, as passes over prompts computed them.
struct HeldPrompt {
  std::vector<int32_t> ids;
  std::vector<float> logits;  // after the last one; empty: not known
  int64_t used = 0;           // when, in turns
};

class PromptRows {
 public:
  // Prompts are computed `part` positions at a time, from the first one on: only whole parts and
  // whole prompts are shared, so that what is shared has the bits that it would be computed with.
  PromptRows(int64_t rows, int64_t part) : rows_(static_cast<size_t>(rows)), part_(part) {}

  HeldPrompt& at(int64_t row) { return rows_[static_cast<size_t>(row)]; }
  const HeldPrompt& at(int64_t row) const { return rows_[static_cast<size_t>(row)]; }
  void Swap(int64_t a, int64_t b);

  // The row that holds most of what the prompt begins with, and how much of it; of equals one that
  // is idle.
  struct Shared {
    int64_t row = 0;
    int64_t positions = 0;
    bool whole = false;  // the logits after it too
  };
  Shared Find(absl::Span<const int32_t> prompt, int64_t first_idle) const;
  // The row for a prompt, of those from `first_idle` on, of which `busy` is taken (-1: none):
  // where most of it is and nothing more is lost by that; else the one that was of use longest
  // ago.
  int64_t RowFor(const Shared& shared, int64_t first_idle, int64_t busy) const;

 private:
  int64_t SharedWith(const HeldPrompt& held, absl::Span<const int32_t> prompt) const;

  std::vector<HeldPrompt> rows_;
  int64_t part_;
};

}  // namespace espalier
