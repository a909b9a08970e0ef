// Evaluator: mean loss on the validation split, its sequences divided evenly among the ranks. Used
// by worker/train and worker/. Compute thread.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/statusor.h"
#include "worker/data/order.h"
#include "worker/model/decoder.h"
#include "worker/sync/together.h"
#include "worker/task/task.h"

namespace espalier {

struct Evaluation {
  double loss = 0;  // mean per token that counts, in nats; the same on all ranks
  int64_t tokens = 0;
  double seconds = 0;
};

class Evaluator {
 public:
  struct Options {
    int64_t max_sequences = 0;  // the first so many; 0: all
    // Passes of one sequence, whose losses are added in a way that no division into ranks changes.
    bool reproducible = false;
  };
  // The task outlives this and has a validation split.
  Evaluator(const RankContext& context, const Task& task, Options options);

  // Every rank calls this at the same step. The ranks keep in touch after every pass, so that the
  // slowest is not taken for lost. Micro-batches of this rank hold `micro_batch` sequences, or as
  // many as memory allows, of which free_memory gives back what can be spared.
  absl::StatusOr<Evaluation> Run(Decoder& decoder, int64_t micro_batch,
                                 const std::function<void()>& free_memory);
  int64_t sequences() const { return sequences_; }

 private:
  struct Sums {
    double loss = 0;
    int64_t tokens = 0;
    int64_t left = 0;  // sequences this rank has still to do
  };
  absl::Status Pass(Decoder& decoder, SlotRange range, Sums& sums);
  // The first sequences of `range`, all of them or as many as fit; how many.
  absl::StatusOr<int64_t> PassThatFits(Decoder& decoder, SlotRange range,
                                       const std::function<void()>& free_memory, Sums& sums);

  RankContext context_;
  const Task& task_;
  Options options_;
  int64_t sequences_;
};

}  // namespace espalier
