// PassMemory: how much memory the passes of this rank may take: finds the size of a micro-batch
// before the first step, has passes recorded where that fits, watches readings, trims what is only
// kept, and tells a person what to change when nothing fits. Used by trainer.h and
// gradient_passes.h. Compute thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "espalier/v1/job.pb.h"
#include "espalier/v1/worker.pb.h"
#include "worker/memory/memory_governor.h"
#include "worker/memory/memory_meter.h"
#include "worker/state/replica.h"
#include "worker/sync/together.h"
#include "worker/train/pass_runner.h"

namespace espalier {

// What a probe found: memory before the pass and at its peak.
struct PassReading {
  int64_t before = 0;
  int64_t peak = 0;
};
// Has passes measured until the governor knows their size. One that runs out of memory, or takes
// more than `limit` (for people) allows, ends that unless it was as small as passes may be.
absl::Status FindPassSize(MemoryGovernor& governor, int64_t smallest, const std::string& limit,
                          const std::function<absl::StatusOr<PassReading>(int64_t size)>& measure);

class PassMemory {
 public:
  // All outlive this.
  struct Parts {
    const v1::JobSpec& spec;
    RankContext context;
    const Task& task;
    Replica& replica;
    PassRunner& runner;
  };
  struct Limits {
    // Most memory this worker may use; 0: what the machine has. See TightestLimit.
    int64_t memory_limit_bytes = 0;
    int local_ranks = 1;  // workers that share the machine's memory
  };
  // INVALID_ARGUMENT when the job's micro-batches do not fit the world; FAILED_PRECONDITION when
  // the size of a micro-batch is to be found and memory cannot be measured.
  static absl::StatusOr<std::unique_ptr<PassMemory>> Create(const Parts& parts, Limits limits);

  MemoryGovernor& governor() { return governor_; }

  // Measures passes over made-up tokens, whose gradients are dropped, until the size of a
  // micro-batch is known; `beside`: bytes that a step's passes find taken besides. Nothing after
  // the first step.
  absl::Status Probe(int64_t beside);
  // Sequences of a pass without gradients: no more than the passes of the last step held.
  int64_t EvaluationRows() const;
  // Has passes over a shard of `rows` recorded, where the device can and a quarter of what they
  // take stays free, for evaluation and for passes over micro-batches of other sizes. `largest`: of
  // the last step.
  void RecordPasses(int64_t rows, int64_t largest);

  // Bytes of the machine's memory that may be taken beside what passes take, as the last step's
  // did; negative: there are none.
  int64_t Room();
  // So many bytes of what this worker takes are none of the passes'.
  void SetBeside(int64_t bytes) { beside_ = bytes; }

  // The passes of a step begin.
  void Restart() { meter_.Restart(); }
  // Gives back all that is not needed for the state of the run.
  void Free();
  // After the passes of every batch.trim_every_steps-th step, while gradients are under way.
  void TrimIfDue(Step step);
  // What the passes of a step took, the largest of `largest` rows; the governor learns from it.
  void Report(int64_t largest, v1::StepReport& report);

  // The same status; one of memory that ran out says what would need less.
  absl::Status WithAdvice(const absl::Status& status) const;

 private:
  PassMemory(const Parts& parts, const MemoryGovernor::Options& options, int local_ranks,
             std::string limit_source);
  // Without what is beside the passes.
  absl::StatusOr<MemoryMeter::Reading> ReadPasses();
  EmbeddingRows MadeUpRows() const;
  absl::Status ProbePass(int64_t size);
  bool HasRoomToRecord();

  const Parts parts_;
  MemoryMeter meter_;
  MemoryGovernor governor_;
  const int local_ranks_;
  std::string limit_source_;
  int64_t beside_ = 0;
  int64_t largest_ = 0;             // micro-batch of the last step that had one
  std::vector<int64_t> recording_;  // sizes whose passes are recorded, or cannot be
  int64_t trimmed_bytes_ = 0;       // in this step
  double trim_seconds_ = 0;
};

}  // namespace espalier
