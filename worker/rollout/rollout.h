// RolloutSource: completions of prompts, sampled from a model and judged, by all ranks together.
// What comes of a prompt is a function of the model, the prompt and the order's seeds: never of who
// samples it, of how many ranks there are, or of what is sampled beside it. Implementation:
// rollout_engine.h. Used by worker/task and worker/train. Compute thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/generation/sample.h"
#include "worker/model/decoder.h"
#include "worker/reward/verifier.h"
#include "worker/sync/together.h"

namespace espalier {

// What is to be completed, and what its verifier is told.
struct RolloutPrompt {
  int64_t id = 0;  // its row in a table, the number of a game: with the seed what tells it apart
  std::vector<int32_t> ids;
  std::string record;  // JSON
  // Its samples are first, first + 1 and so on.
  int64_t first = 0;
  int64_t samples = 0;  // 0: as many as the order says
};

// The same on all ranks.
struct RolloutOrder {
  TrainingMoment moment;
  std::vector<RolloutPrompt> prompts;
  int64_t samples = 1;  // of each prompt
  SampleOptions sample;
  uint64_t seed = 1;   // with moment.step, a prompt's id and the number of the sample: a seed
  bool judged = true;  // false: judgements stay empty
};

struct Rollout {
  int64_t prompt = 0;  // its place in the order
  int64_t sample = 0;
  std::vector<int32_t> ids;  // of the completion; with the end-of-text id where it ended with one
  std::string text;          // of them, without the end-of-text id
  // By the end-of-text id or a stop text, which both belong to it; else there was no room for more.
  bool stopped = false;
  Judgement judgement;
};

// Of all ranks together, but for the seconds, which are this rank's.
struct RolloutFigures {
  double rollout_seconds = 0;  // waiting for the others included
  double reward_seconds = 0;
  int64_t new_tokens = 0;
  int64_t samples = 0;
};

struct Rollouts {
  std::vector<Rollout> all;  // by (prompt, sample)
  RolloutFigures figures;
};

enum class RolloutPart { kSampling, kJudging };

// What a rank does of an order at most: of what it could in the time of the others, and of all its
// completions. What has no place within the limits of all is done all the same.
struct RolloutLimit {
  double part = 1;
  double largest_share = 1;
};

// What the run around it gives to an order.
struct RolloutAround {
  // Of each rank, the same on all ranks: what it does in the time of the others. Empty: as much.
  std::vector<int64_t> shares;
  // Asked now and then: what limits this rank. Null: nothing.
  std::function<RolloutLimit()> limit = nullptr;
  // Asked now and then: whether the ranks are wanted at the boundary. Null: never.
  std::function<bool()> called_away;
  // Told what is begun, and what has just been done, which follows it at once. Null: nobody is.
  std::function<void(RolloutPart)> begins;
  std::function<void(RolloutPart)> done;
  // Told of each layer that the model has done, as PassInputs::worked. Null: nobody is.
  std::function<void(int64_t next)> worked = nullptr;
  // Gives back memory that can be spared: asked once, when it runs out. Null: there is none.
  std::function<void()> free_memory = nullptr;
  int64_t step = 0;  // committed so far
  // Of an evaluation: something waits for all of it, so that no boundary comes between its orders.
  bool in_one_go = false;
  // Of one in one go: told when Practice::kept has grown. Null: nobody is.
  std::function<void()> got_on = nullptr;
  // What the job had judged before its first step and goes on with; 0: nothing.
  int64_t kept = 0;
};

// A rank that samples, and the memory that it may take.
struct RolloutPlace {
  RankContext context;
  int64_t memory_limit_bytes = 0;  // of this worker; 0: what the machine has
  int local_ranks = 1;             // workers that share the machine's memory
  double slow_down = 1;            // as that of a Pace (worker/train/pace.h)
};

class RolloutSource {
 public:
  virtual ~RolloutSource() = default;
  // Every rank calls it with an equal order and has an equal result. Absent, on all of them: one
  // was called away, and what had been sampled is dropped. INVALID_ARGUMENT: a prompt or a record
  // that nobody can use; DATA_LOSS: logits that are no numbers; else errors of the collective, of
  // memory and of the verifier, which are OfTheirNodes once the job has got on by it.
  virtual absl::StatusOr<std::optional<Rollouts>> Sample(const Decoder& decoder,
                                                         const RolloutOrder& order,
                                                         const RolloutAround& around) = 0;
};

}  // namespace espalier
