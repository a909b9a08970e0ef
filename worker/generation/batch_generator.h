// BatchGenerator: continues many sequences of token ids at once. They come and go at any time: a
// turn computes a part of a prompt, then one id for every sequence that runs, and rows that end
// are taken by those that wait. What a sequence becomes depends on its prompt, options and seed
// alone: on the CPU to the bit; elsewhere logits agree to rounding (1e-5 in fp32), which changes an
// id only where two are that near. Used by worker/generate_verb.cc, worker/chat_verb.cc,
// worker/verbs.h, worker/rollout and worker/serve. Compute thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/generation/prompt_rows.h"
#include "worker/generation/sample.h"
#include "worker/generation/step_runner.h"
#include "worker/model/decoder.h"

namespace espalier {

// What is to be continued.
struct Sequence {
  std::vector<int32_t> prompt;
  int64_t max_new_tokens = 200;
  SampleOptions sample;
  uint64_t seed = 1;
  std::vector<int32_t> stop_ids;  // it ends at one of them, which is not part of the result
  // Called with each new id, by the thread that calls Turn; false ends it after this one. May be
  // empty.
  std::function<bool(int32_t id)> on_token;
  // Whose it is: those with fewer rows come first, and with several rows nobody gets more than
  // three quarters of them. 0: nobody's, of which there may be as many as there are rows.
  int64_t owner = 0;
};

// INVALID_ARGUMENT for what no model could do; costs nothing, so before one is loaded.
absl::Status CheckSequenceOptions(const Sequence& sequence);
// INVALID_ARGUMENT for what a model cannot continue in a row of so many positions: an empty prompt,
// ids outside the vocabulary, options out of range, too many positions.
absl::Status CheckSequence(const Sequence& sequence, const DecoderConfig& config,
                           int64_t positions);

enum class SequenceEnd {
  kStopped,  // a stop id, or on_token
  kLength,   // max_new_tokens
  kCancelled,
  kFailed,  // NotNumbers
};

// DATA_LOSS: what is said of a sequence whose logits are no numbers.
absl::Status NotNumbers();

struct Continued {
  int64_t id = 0;  // as Add gave it
  SequenceEnd end = SequenceEnd::kLength;
  std::vector<int32_t> new_ids;
};

class BatchGenerator {
 public:
  struct Options {
    int64_t rows = 16;          // sequences that run at a time
    int64_t positions = 4096;   // of one, at most, its prompt included
    int64_t prompt_part = 256;  // of prompts, in a turn: where one is cut is part of its bits
    std::function<void(int64_t next)> worked = nullptr;  // as PassInputs::worked; null: nobody
  };
  // `decoder` must outlive it. INVALID_ARGUMENT, RESOURCE_EXHAUSTED.
  static absl::StatusOr<BatchGenerator> Create(const Decoder& decoder, const Options& options);

  // Whether Turn can continue it.
  absl::Status Check(const Sequence& sequence) const {
    return CheckSequence(sequence, decoder_->config(), options_.positions);
  }
  absl::StatusOr<int64_t> Add(Sequence sequence);  // its number; Check passes it
  void Cancel(int64_t id);  // it ends in the next turn; nothing where it has ended

  // One id more for all that run; those that have ended. RESOURCE_EXHAUSTED for memory: this is of
  // no more use then.
  absl::StatusOr<std::vector<Continued>> Turn();

  int64_t waiting() const { return static_cast<int64_t>(waiting_.size()); }
  // The one whose prompt is being computed included.
  int64_t running() const { return ready_ + (filling_ ? 1 : 0); }
  bool busy() const { return waiting() + running() > 0; }
  // Positions of prompts that were computed, and those that a row already held.
  struct PromptCount {
    int64_t computed = 0, shared = 0;
  };
  const PromptCount& prompt_count() const { return prompt_count_; }

 private:
  struct Running {
    int64_t id = 0;
    Sequence sequence;
    Sampler sampler;
    std::vector<int32_t> new_ids;
    std::optional<SequenceEnd> end;
  };
  struct Waiting {
    int64_t id = 0;
    Sequence sequence;
  };

  BatchGenerator(const Decoder& decoder, const Options& options, KeyValueCache cache);
  void TakeTurn();
  void EndWaiting(size_t place, SequenceEnd end);
  void RemoveEnded();
  // Rows that an owner has, and may have.
  int64_t RowsOf(int64_t owner) const;
  int64_t MostRowsOf(int64_t owner) const;
  std::optional<size_t> NextWaiting() const;
  // Begins the next prompt where there is one and room for it.
  bool BeginPrompt();
  // Computes a part of it, and has it join those that run when that was the last. Positions.
  int64_t FillPart();
  // No fewer than `count`; what is computed behind those is forgotten.
  int64_t ComputedPositions(int64_t begin, int64_t count) const;
  void Join(std::vector<float> logits);
  void Step();
  // The next id of a row; none: its logits are no numbers.
  void Append(Running& row, std::optional<int32_t> id);
  void SwapRows(int64_t a, int64_t b);

  const Decoder* decoder_;
  Options options_;
  KeyValueCache cache_;
  StepRunner steps_;
  PromptRows prompts_;
  std::deque<Waiting> waiting_;
  std::vector<std::optional<Running>> rows_;  // the first ready_ run
  int64_t ready_ = 0;
  std::optional<int64_t> filling_;  // the row of the prompt that is being computed
  std::vector<Continued> ended_;
  PromptCount prompt_count_;
  int64_t next_id_ = 1, turn_ = 0;
};

// Continues all of them to their ends: of each, in their order, what it becomes. At most `rows` run
// at a time, which changes how long it takes and no result.
absl::StatusOr<std::vector<Continued>> GenerateAll(const Decoder& decoder,
                                                   std::vector<Sequence> sequences,
                                                   int64_t rows = 16);
// The new ids of one.
absl::StatusOr<std::vector<int32_t>> Generate(const Decoder& decoder, Sequence sequence);

}  // namespace espalier
