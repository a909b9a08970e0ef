// Trainer: the step loop of one rank, from the state all ranks agreed on to the last step or to
// whatever the directives say. Every rank of a generation runs one over the same job.
// Used by run.cc and by tests with in-process collectives. Compute thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "espalier/v1/job.pb.h"
#include "espalier/v1/worker.pb.h"
#include "worker/control/link.h"
#include "worker/data/samples.h"
#include "worker/memory/memory_governor.h"
#include "worker/memory/memory_meter.h"
#include "worker/state/checkpoint_saver.h"
#include "worker/state/replica.h"
#include "worker/sync/gradient_exchange.h"
#include "worker/sync/lookup_exchange.h"
#include "worker/sync/together.h"
#include "worker/train/boundary.h"
#include "worker/train/evaluate.h"
#include "worker/train/pass_runner.h"
#include "worker/train/sample_log.h"
#include "worker/train/shard_passes.h"
#include "worker/train/step_report.h"
#include "worker/train/time_accounts.h"

namespace espalier {

class Trainer {
 public:
  // What a trainer works with; everything outlives it. What is in the exchange when a step fails
  // must last as long as the collective: the replica and the lookups do.
  struct Parts {
    RankContext context;
    ControlLink& link;
    Replica& replica;
    LookupExchange& lookups;
    SampleSource& samples;
    CheckpointSaver& saver;
    Evaluator* evaluator = nullptr;    // none: there is no validation split
    SampleLog* sample_log = nullptr;   // none: not wanted
    StepObserver* observer = nullptr;  // told each report of this rank
  };
  struct Options {
    // Elements of a bucket of the gradient exchange, at least; the same on all ranks.
    int64_t bucket_elements = int64_t{1} << 20;
    // While paused, rank 0 tells the others so often that nothing has changed.
    absl::Duration pause_interval = absl::Seconds(1);
    // After a checkpoint that must not be lost could not be written, the next attempt.
    absl::Duration save_retry_interval = absl::Seconds(5);
    // Most memory this worker may use; 0: what the machine has. See TightestLimit.
    int64_t memory_limit_bytes = 0;
    int local_ranks = 1;  // workers that share the machine's memory
  };
  // INVALID_ARGUMENT when spec and world do not fit (see plan.h); FAILED_PRECONDITION when the size
  // of a pass is to be found and memory cannot be measured.
  static absl::StatusOr<std::unique_ptr<Trainer>> Create(const v1::JobSpec& spec,
                                                         const Parts& parts, Options options);

  // COMPLETED or STOPPED. The same on all ranks, as are errors that are not the collective's.
  absl::StatusOr<v1::Outcome> Run();

  // Of the newest evaluation, at step evaluated_step().
  std::optional<Evaluation> last_evaluation() const { return evaluation_; }

 private:
  enum class StepEnd {
    kCommitted,
    kStopped,          // as the directive said
    kStoppedToResume,  // the same, and a checkpoint is wanted first
  };
  // What each rank tells the others about its part of a step. Plain.
  struct PartSums {
    double loss = 0;  // sum over tokens, in nats
    int64_t tokens = 0;
    int64_t finite = 1;
    double norm = 0;  // rank 0: of the summed gradient
  };
  Trainer(const v1::JobSpec& spec, const Parts& parts, Options options);

  absl::StatusOr<StepEnd> TrainStep();
  absl::StatusOr<Boundary> ObeyBoundary();
  absl::Status AdoptPlan(const Boundary& boundary);
  void Acknowledge(const Boundary& boundary);
  absl::Status BackwardPasses(const Samples& samples, PartSums& sums);
  absl::StatusOr<PartSums> SumParts(const PartSums& mine);
  // expected: the loss scale was too large, and has been reduced.
  absl::Status SkipUpdate(const PartSums& total, bool expected);
  absl::StatusOr<StepEnd> ReportStep(v1::StepReport report, const Samples& samples);
  void ReportExchange(v1::StepReport& report);
  void Enter(v1::Phase phase);

  absl::Status SetUpGovernor();
  absl::Status Probe(const Samples& samples);
  absl::Status ProbePass(int64_t size);
  absl::Status WithMemoryAdvice(const absl::Status& status) const;
  void RecordPasses();
  void FreeMemory();
  void TrimIfDue();
  void ReportMemory(v1::StepReport& report);

  absl::Status AfterStep();
  absl::Status Evaluate();
  absl::Status Save();
  absl::StatusOr<v1::Outcome> SaveForGood(v1::Outcome outcome);
  absl::StatusOr<bool> WaitToRetry();

  const v1::JobSpec spec_;
  Parts parts_;
  const Options options_;
  Collective& collective_;
  Replica& replica_;
  MemoryMeter meter_;
  MemoryGovernor governor_{{}};
  PassRunner runner_;
  std::vector<int64_t> recording_;  // sizes of passes that are recorded, or cannot be
  ShardPasses passes_;
  Transfers transfers_;
  GradientExchange exchange_;
  std::vector<torch::Tensor> losses_;  // of the step's passes, on the device
  TimeAccounts accounts_;
  v1::ShardPlan default_plan_;
  std::optional<int64_t> plan_;  // number of the plan in force
  SlotRange shard_;
  int64_t acknowledged_ = 0;        // newest directive; 0: there is none yet
  int64_t checkpoints_obeyed_ = 0;  // newest checkpoint_request
  std::optional<Step> evaluated_step_;
  std::optional<Evaluation> evaluation_;
  CollectiveStats reported_;   // as of the last report
  int64_t trimmed_bytes_ = 0;  // in this step
  double trim_seconds_ = 0;
  std::string limit_source_;
};

}  // namespace espalier
