// What the coordinator wants of a generation, as plain data. The numbers of the enums equal those
// of worker.proto, whose comments say what each means to a worker. Used by the core and by the
// runtime, which translates. Plain values: any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/ids.h"

namespace espalier {

enum class RunState {
  // Commit steps.
  kRun = 1,
  // Finish the step, stay in memory without using the processor.
  kPause = 2,
  // Finish the step and exit.
  kStop = 3,
};

// Sequences of each rank for the steps from from_step on; they add up to the global batch.
struct ShardPlan {
  int64_t number = 0;
  Step from_step;
  std::vector<int32_t> sequences;
  // The numbers it came from, for people.
  std::string reason;
  friend bool operator==(const ShardPlan&, const ShardPlan&) = default;
};

// The whole of what is wanted; a newer number replaces an older one. Numbers start from 1 in every
// generation.
struct Directive {
  int64_t number = 0;
  RunState run_state = RunState::kRun;
  // Grows with every checkpoint asked for within a generation.
  int64_t checkpoint_request = 0;
  // With kStop.
  bool checkpoint_before_stop = false;
  ShardPlan plan;
  friend bool operator==(const Directive&, const Directive&) = default;
};

}  // namespace espalier
