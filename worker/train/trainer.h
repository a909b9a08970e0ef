// Trainer: the step loop of one rank, from the state all ranks agreed on to the last step or to
// whatever the directives say. Every rank of a generation runs one over the same job.
// Used by worker/session.cc and by tests with in-process collectives. Compute thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "espalier/v1/job.pb.h"
#include "espalier/v1/worker.pb.h"
#include "worker/control/control_client.h"
#include "worker/data/samples.h"
#include "worker/state/checkpoint_saver.h"
#include "worker/state/replica.h"
#include "worker/state/warm_state.h"
#include "worker/sync/synchroniser.h"
#include "worker/sync/together.h"
#include "worker/task/practice.h"
#include "worker/task/task.h"
#include "worker/train/evaluate.h"
#include "worker/train/gradient_passes.h"
#include "worker/train/milestones.h"
#include "worker/train/pass_memory.h"
#include "worker/train/pass_runner.h"
#include "worker/train/reporter.h"
#include "worker/train/sample_log.h"
#include "worker/train/step_boundary.h"
#include "worker/train/time_accounts.h"

namespace espalier {

class Trainer {
 public:
  // What a trainer works with; everything outlives it. What is in the exchange when a step fails
  // must last as long as the collective: the replica and the synchroniser do.
  struct Parts {
    RankContext context;
    ControlClient& client;
    Replica& replica;
    Synchroniser& synchroniser;
    const Task& task;
    SampleSource& samples;         // of task.training()
    Practice* practice = nullptr;  // of a task that has one
    CheckpointSaver& saver;
    WarmState* warm = nullptr;         // none: the replica dies with the process
    Evaluator* evaluator = nullptr;    // none: there is no validation split
    SampleLog* sample_log = nullptr;   // none: not wanted
    StepObserver* observer = nullptr;  // told each report of this rank
  };
  struct Options {
    StepBoundary::Options boundary;
    PassMemory::Limits memory;
    Pace::Options pace = {};
  };
  // INVALID_ARGUMENT when spec and world do not fit (see plan.h); FAILED_PRECONDITION when the size
  // of a micro-batch is to be found and memory cannot be measured.
  static absl::StatusOr<std::unique_ptr<Trainer>> Create(const v1::JobSpec& spec,
                                                         const Parts& parts, Options options);

  // COMPLETED or STOPPED. The same on all ranks, as are errors that are not the collective's.
  absl::StatusOr<v1::Outcome> Run();

  // The state that Run ended with is in a checkpoint.
  bool saved_for_good() const { return saved_for_good_; }
  // Why the job is complete before its last step; empty: it is not.
  std::string why_early() const;
  // Why the model is no other than it was, after all its steps; empty: it has learnt.
  std::string learnt_nothing() const;
  // Of the newest evaluation.
  std::optional<Evaluation> last_evaluation() const { return milestones_->last_evaluation(); }

 private:
  enum class StepEnd {
    kCommitted,
    kNotBegun,         // the evaluation of the step before was made now, or broken off
    kStopped,          // as the directive said
    kStoppedToResume,  // the same, and a checkpoint is wanted first
    kCompleted,
  };
  Trainer(const v1::JobSpec& spec, const Parts& parts);

  absl::StatusOr<v1::Outcome> RunSteps();
  // Of what is done without a step.
  void ReportPractised();
  // The last step is committed, or the validation loss falls no more.
  bool Ends() const;
  absl::StatusOr<StepEnd> TrainStep();
  // After the last step: the evaluation and the checkpoint of it.
  absl::StatusOr<StepEnd> EndRun();
  absl::StatusOr<Boundary> MeetBoundary();
  // Absent: the message does not say to stop.
  static std::optional<StepEnd> StopOf(const Boundary& boundary);
  // Of a task that makes its samples itself: has those of the next step made. False: there was an
  // evaluation to be made first, or the ranks were called away.
  absl::StatusOr<bool> Practise();
  // Of my slots of the next step.
  absl::StatusOr<std::shared_ptr<const Samples>> SamplesOf(SlotRange shard);
  absl::Status UpdateOrSkip(const StepTotals& total, v1::StepReport& report);
  // `expected`: the loss scale was too large, and has been reduced. Counts it in `after`.
  absl::Status SkipUpdate(const StepTotals& total, bool expected, TrainingCounters& after);
  absl::Status Update(const AdamW::Update& update, const TrainingCounters& after);
  absl::Status LogSamples(const Samples& samples);

  const v1::JobSpec spec_;
  const Parts parts_;
  Replica& replica_;
  TimeAccounts accounts_;
  StepReporter reporter_;
  PassRunner runner_;
  const std::function<void(int64_t)> worked_;  // of what is sampled, so that it knows the device
  std::unique_ptr<PassMemory> memory_;
  std::optional<GradientPasses> passes_;
  std::optional<Milestones> milestones_;
  std::optional<StepBoundary> boundary_;
  bool saved_for_good_ = false;
};

}  // namespace espalier
