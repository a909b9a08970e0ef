// RolloutBatch: the completions of an order that one rank samples: as many at a time as it has
// rows, each up to its end-of-text id, a stop text, or the room that it has. When memory runs out
// it takes half the rows and begins again what was not ended, which becomes what it would have
// become. Used by rollout_engine.h, and by worker/task for how many there may be. Compute thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "worker/generation/batch_generator.h"
#include "worker/rollout/rollout.h"
#include "worker/tokenizer/stream_decoder.h"
#include "worker/tokenizer/tokenizer.h"

namespace espalier {

// Rows at a time where nobody says how many.
inline constexpr int64_t kRolloutRows = 64;

// How completions end, and how many are sampled at a time.
struct RolloutLimits {
  int64_t max_new_tokens = 128;
  // Texts with which a completion ends; none empty.
  std::vector<std::string> stop = {};
  // Of a sequence, its prompt included; 0: as many as the model has.
  int64_t positions = 0;
  int64_t rows = 0;  // 0: kRolloutRows; fewer where they are more than a quarter of what is free
  int64_t memory_bytes = 0;  // what this worker may use at most; 0: what the device has
  int sharers = 1;           // workers that share what is free of the machine's memory
};

// A sample of a prompt, by its place in the order.
struct RolloutItem {
  int64_t prompt = 0;
  int64_t sample = 0;
};

class RolloutBatch {
 public:
  // What outlives it.
  struct Parts {
    const Decoder& decoder;
    const Tokenizer& tokenizer;
    const RolloutOrder& order;
    const RolloutLimits& limits;
    const RolloutAround& around;
  };
  // INVALID_ARGUMENT: a prompt that the model cannot continue in that room.
  static absl::Status Check(const Parts& parts);
  // Of orders that pass Check. Takes memory when the first item begins.
  explicit RolloutBatch(const Parts& parts);

  int64_t rows() const { return rows_; }
  bool ran_out() const { return ran_out_; }  // of memory: fewer rows are left than it began with
  int64_t running() const { return static_cast<int64_t>(running_.size()); }
  bool has_room() const { return running() < rows_; }
  absl::Status Begin(const RolloutItem& item);
  // One id more for all that run; appends those that have ended. DATA_LOSS: logits are no numbers;
  // RESOURCE_EXHAUSTED: there is no memory for one row.
  absl::Status Turn(std::vector<Rollout>& ended);

  // New ids so far, and those that are still to come of what runs, by the mean of what has ended.
  int64_t new_tokens() const { return new_tokens_; }
  double tokens_to_come() const;
  double mean_tokens() const;

 private:
  // What is known of a sample that runs.
  struct Running {
    RolloutItem item;
    std::vector<int32_t> ids;
    StreamDecoder decoder;
    std::string text;
    bool stopped = false;
  };
  int64_t MostRows() const;
  int64_t RoomFor(const RolloutPrompt& prompt) const;
  absl::Status MakeGenerator();
  absl::Status Add(const RolloutItem& item);
  absl::Status TakeFewerRows(const absl::Status& why);
  // False: it ends with this id.
  bool Append(Running& running, int32_t id);

  const Parts parts_;
  const std::vector<int32_t> ends_;  // StopIds
  int64_t positions_ = 0;            // of a row
  int64_t rows_ = 0;
  bool ran_out_ = false;
  bool freed_ = false;  // what could be spared
  std::optional<BatchGenerator> generator_;
  std::map<int64_t, std::unique_ptr<Running>> running_;  // by the generator's number
  int64_t new_tokens_ = 0;
  int64_t ended_ = 0, ended_tokens_ = 0;
};

}  // namespace espalier
