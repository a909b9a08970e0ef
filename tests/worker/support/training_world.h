// A whole generation in one process: a thread per rank with its own replica, trainer and control
// client, joined by the in-process collective, on a tiny model and a made-up text. Used by
// tests/worker/mac, tests/worker/state, tests/worker/task, tests/worker/train and
// tests/worker/session_test.cc.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/base/file_system.h"
#include "common/platform/platform.h"
#include "espalier/v1/job.pb.h"
#include "espalier/v1/worker.pb.h"
#include "worker/control/control_client.h"
#include "worker/data/samples.h"
#include "worker/state/replica.h"
#include "worker/state/start_state.h"
#include "worker/task/task.h"

namespace espalier {

// Plays the coordinator: holds the directive, records what the ranks report.
class ScriptedClient : public ControlClient {
 public:
  absl::StatusOr<v1::Welcome> Attach(const v1::Hello&, absl::Duration) override {
    return v1::Welcome();
  }
  v1::Directive directive() const override;
  bool WaitForDirectiveAfter(int64_t number, absl::Duration timeout) override;
  absl::StatusOr<bool> WaitForLease(absl::Duration timeout) override;
  void Report(v1::AttachRequest message) override;
  absl::Status Finish(const v1::Finished&, absl::Duration) override { return absl::OkStatus(); }
  absl::Status status() const override { return absl::OkStatus(); }
  ProgressBoard& progress() override { return board_; }

  // Run inside Report, before it returns: what rank 0 does next already sees a new directive.
  std::function<void(ScriptedClient&, const v1::AttachRequest&)> on_report;
  void Set(const v1::Directive& directive);
  // What WaitForLease asks; null: the lease never runs out.
  std::function<bool(absl::Duration timeout)> lease;

  std::vector<v1::StepReport> steps() const;
  std::vector<v1::Practised> practised() const;
  std::vector<v1::DirectiveAck> acks() const;
  std::vector<v1::CheckpointReport> checkpoints() const;
  std::vector<v1::EvaluationReport> evaluations() const;

 private:
  mutable absl::Mutex mutex_;
  v1::Directive directive_;
  std::vector<v1::AttachRequest> messages_;
  ProgressBoard board_;
};

enum class StopKeeps { kNothing, kCheckpoint };
// What a coordinator says first when it wants the run to stop, with a checkpoint or without.
v1::Directive StopDirective(StopKeeps keeps);
// The same as a script (WorldOptions): rank 0 hears it after so many committed steps.
std::function<void(int rank, ScriptedClient& client)> StopAfter(int64_t steps, StopKeeps keeps);

struct WorldOptions {
  int ranks = 1;
  v1::JobSpec spec;
  std::string checkpoints;  // folder
  // Each rank has a folder of its own in there, as on machines of their own: "0", "1".
  bool own_folders = false;
  // The file system of a rank's checkpoints; null: the machine's.
  std::function<FileSystem*(int rank)> checkpoint_files;
  int64_t memory_limit_bytes = 0;
  StartOptions start;
  // The registry of warm states, in which each rank has its own; empty: there are none.
  std::string warm;
  bool warm_copies = false;  // of a device with memory of its own
  // See RunIdentity; null: it does not matter.
  std::function<std::string(int rank)> computed_by;
  std::function<void(int rank, Step step, const std::string& folder)> on_found;
  int64_t bucket_elements = 2000;
  bool validation = false;
  bool tied = false;  // the embedding to the head
  int64_t layers = 2;
  Architecture architecture = Architecture::kLlama;
  std::optional<DecoderConfig> config;  // in place of TinyConfig with the above
  int64_t arena_elements = kArenaElements;
  torch::Device device = torch::kCPU;
  bool values_on_host = false;  // as with MPS
  const Task* task = nullptr;   // null: next tokens of a made-up text
  // Writes a sample log to the file system that this gives for a rank.
  std::function<FileSystem*(int rank)> sample_log_files;
  // Gives each rank's client its script.
  std::function<void(int rank, ScriptedClient& client)> script;
  std::function<absl::StatusOr<std::unique_ptr<KeepAwake>>()> keep_awake;
  // Stands before each rank's collective, which outlives what it returns.
  std::function<std::unique_ptr<Collective>(Collective& collective)> wrap_collective;
  // Wraps each rank's source of samples.
  std::function<std::unique_ptr<SampleSource>(int rank, Replica& replica,
                                              std::unique_ptr<SampleSource> source)>
      wrap;
};

struct RankResult {
  absl::StatusOr<v1::Outcome> outcome = absl::UnknownError("did not run");
  std::unique_ptr<ScriptedClient> client;
  std::unique_ptr<Replica> replica;
  StartState start;
  uint64_t fingerprint = 0;
  std::vector<double> losses;  // by step, as this rank reported them
};

// Prompts of 3 to 12 tokens, and completions of 1 to 6 that follow from them and end; as long as
// TinySpec's sequences at most.
std::shared_ptr<const ExampleRows> TinyExamples(int64_t count);

// A job of `steps` steps of 16 sequences of 32 tokens for a decoder of 2 x 32.
v1::JobSpec TinySpec(int64_t steps);
DecoderConfig TinyConfig();

// Agrees on the start and trains; one result per rank.
std::vector<RankResult> TrainWorld(const WorldOptions& options);

}  // namespace espalier
