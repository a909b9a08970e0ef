// SampleOrder: which samples a step uses, as a pure function of (samples, seed, step): never of
// ranks, restarts, micro-batches or timing. Every sample is used exactly once per epoch. An epoch
// runs into the next within a step, or ends with a step of its own. Used by samples.h,
// worker/state, worker/task, worker/train and audits. Immutable values: any thread.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/ids.h"

namespace espalier {

// A seeded bijection of [0, n) that needs no memory: a Feistel network over the next power of four,
// walked along its cycle until it is back inside (Black and Rogaway 2002, method 2).
class Permutation {
 public:
  struct Options {
    uint64_t size = 1;  // 1 to 2^62
    uint64_t seed = 0;
    uint64_t stream = 0;  // the epoch
  };
  explicit Permutation(Options options);
  // index in [0, size) -> [0, size); a few network passes at most on average.
  uint64_t operator()(uint64_t index) const;

 private:
  static constexpr int kRounds = 8;
  uint64_t Encrypt(uint64_t value) const;

  uint64_t size_;
  int half_bits_;
  std::array<uint64_t, kRounds> keys_;
};

// Slots of the global batch, [begin, end).
struct SlotRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  friend bool operator==(const SlotRange&, const SlotRange&) = default;
};

// The slots of each rank under a plan: rank r takes the sequences_per_rank[r] slots after those of
// rank r - 1. INVALID_ARGUMENT for a negative entry or a sum other than `global_batch`.
absl::StatusOr<std::vector<SlotRange>> SlotsOfRanks(absl::Span<const int64_t> sequences_per_rank,
                                                    int64_t global_batch);

class SampleOrder {
 public:
  struct Options {
    int64_t samples = 0;       // of the training split, at least 1
    int64_t global_batch = 0;  // sequences per step, at least 1
    uint64_t seed = 0;
    // The last step of an epoch takes what is left of it; its further slots are empty.
    bool whole_epochs = false;
    // Tokens of a sample; set: samples of a step are about as long.
    std::function<int64_t(int64_t sample)> length;
  };
  // INVALID_ARGUMENT when there is no sample or no slot.
  static absl::StatusOr<SampleOrder> Create(Options options);

  // Sample ids of the slots `range` of step `step`. Slot j of step s has the global index
  // g = s * global_batch + j; epoch g / samples; sample permutation(seed, epoch)(g % samples). With
  // whole_epochs s is counted from the epoch's first step, so that slots at its end may be empty.
  // With a length, the samples of 50 batches, which the permutation draws as before, are sorted by
  // theirs, cut into batches, and these shuffled: every sample is still used once per epoch.
  std::vector<int64_t> SamplesOfStep(Step step, SlotRange range) const;
  // All slots.
  std::vector<int64_t> SamplesOfStep(Step step) const;
  // Epochs begun before slot 0 of the step: 0 in the first epoch.
  int64_t EpochOfStep(Step step) const;
  // Samples of that epoch that were used before the step.
  int64_t UsedInEpoch(Step step) const;

  const Options& options() const { return options_; }

 private:
  explicit SampleOrder(Options options) : options_(options) {}
  // Global index of slot 0 of the step.
  int64_t FirstOfStep(Step step) const;
  // The samples of the places [begin, end) of an epoch, appended.
  void AppendPlaces(int64_t epoch, int64_t begin, int64_t end, std::vector<int64_t>& ids) const;
  std::vector<int64_t> GroupedByLength(int64_t epoch, int64_t group) const;
  // Places of an epoch that are sorted together.
  int64_t group_size() const { return kGroupedSteps * options_.global_batch; }
  static constexpr int64_t kGroupedSteps = 50;

  Options options_;
};

}  // namespace espalier
