// WorkerSession: a worker that is attached and has joined its world, and the stages it goes through
// with all other ranks: open data, build the model, agree on the start, train. Used by run.cc.
// Compute thread.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/platform/platform.h"
#include "worker/control/control_client.h"
#include "worker/job_inputs.h"
#include "worker/state/checkpoint_copies.h"
#include "worker/state/checkpoint_saver.h"
#include "worker/state/checkpoint_store.h"
#include "worker/state/replica.h"
#include "worker/state/start_state.h"
#include "worker/state/warm_state.h"
#include "worker/sync/all_reduce.h"
#include "worker/tensor/torch.h"
#include "worker/train/evaluate.h"
#include "worker/train/sample_log.h"
#include "worker/train/trainer.h"

namespace espalier {

struct SessionOptions {
  v1::Welcome welcome;  // the spec, and where checkpoints go by default
  std::string device;   // empty: as the job says
  std::string node;
  bool warm = false;  // what is trained outlives the process, though nobody else gives it back
  int local_rank = 0;
  int worker_of_node = 0;  // among those of this job that call themselves by that name
  int local_ranks = 1;     // workers of this job on this machine
  int links = 0;           // read back from MPI
  Pace::Options pace = {};
};

struct SessionResult {
  v1::Outcome outcome = v1::OUTCOME_UNSPECIFIED;
  Step step;
  std::optional<Evaluation> evaluation;
  std::string checkpoint;  // folder of the last one, on rank 0
  std::string why_early;   // why a completed job has not made all its steps; empty: it has
};

class WorkerSession {
 public:
  WorkerSession(const RankContext& context, ControlClient& client, SessionOptions options);
  // All stages; the result is the same on all ranks, as is an error from before the first step that
  // is not the collective's. From then on an error is its rank's own, and the others lose that
  // rank. Throws nothing.
  absl::StatusOr<SessionResult> Run();

 private:
  absl::StatusOr<SessionResult> RunStages();
  absl::Status OpenInputs();
  absl::Status BuildReplica();
  absl::Status KeepWarm();
  absl::Status PrepareCheckpoints();
  StartOptions WhatItNeeds();
  PracticePlace WhereItPractises();
  int64_t MemoryLimit() const;
  void ReportReady(const StartState& start);
  absl::StatusOr<SessionResult> Train();

  RankContext context_;
  ControlClient& client_;
  const SessionOptions options_;
  const v1::JobSpec& spec_;
  JobInputs inputs_;
  std::string device_text_;
  std::unique_ptr<Replica> replica_;
  std::unique_ptr<WarmState> warm_;  // none: the replica dies with the process
  std::optional<AllReduceSynchroniser> synchroniser_;
  std::optional<CheckpointStore> store_;
  CopyRole copy_;
  std::unique_ptr<KeepAwake> awake_;  // until steps are made, which ask for it themselves
};

}  // namespace espalier
