// RftAsks: what of rft is sampled next, and what becomes of it. A prompt is asked once, then once
// more, twice, four times and so on until a completion is accepted: a hard one has few turns, and
// no more than twice the samples that it needs are made. Prompts that are at different turns fill
// an order together, so that machines have as much to do with the hard ones as with the rest. The
// row of a prompt does not depend on what it was asked with. Used by rft_practice.h. Pure: any
// thread.
#pragma once

#include <cstdint>
#include <vector>

#include "worker/rollout/rollout.h"
#include "worker/task/rft_progress.h"

namespace espalier {

// Samples first, first + 1 and so on of a prompt. What comes of them is a function of the prompt
// and of their numbers, so that it does not matter in which order they are asked for.
struct RftAsk {
  int64_t prompt = 0;
  int64_t first = 0;
  int64_t samples = 1;
};

struct RftLimits {
  int64_t prompts = 0;  // there are so many
  int64_t samples = 1;  // of each, at most
};

// Those to ask next, all of them in one order (paced_rollouts.h): of `most` completions together
// or, where the first ask alone is more, that one. Empty: all are done. Prompts that were asked
// come before new ones.
std::vector<RftAsk> NextAsks(const RftProgress& progress, const RftLimits& limits, int64_t most);

// What NextAsks gave for this progress has been sampled: `all` by (place among the asks, sample).
// The first accepted completion of a prompt becomes its row.
void TakeUp(const std::vector<RftAsk>& asks, const RftLimits& limits, std::vector<Rollout> all,
            RftProgress& progress);

}  // namespace espalier
