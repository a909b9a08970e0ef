#include "worker/run.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/file_system.h"
#include "common/base/status_macros.h"
#include "common/config/epochs.h"
#include "common/config/job_file.h"
#include "common/observe/log.h"
#include "common/platform/platform.h"
#include "worker/collective/in_process.h"
#include "worker/collective/mpi_collective.h"
#include "worker/collective/peer_watch.h"
#include "worker/collective/transport.h"
#include "worker/control/attach_client.h"
#include "worker/control/standalone_client.h"
#include "worker/data/dataset.h"
#include "worker/ending.h"
#include "worker/kernels/parallel.h"
#include "worker/launch_environment.h"
#include "worker/session.h"
#include "worker/sync/together.h"
#include "worker/sync/world_proof.h"
#include "worker/task/open_task.h"
#include "worker/tensor/device.h"

namespace espalier {
namespace {

// How long the last message to espalierd, and the orderly end of MPI, may take.
constexpr absl::Duration kFarewell = absl::Seconds(2);
constexpr absl::Duration kAttachTimeout = absl::Seconds(30);
constexpr char kStandaloneCheckpoints[] = "checkpoints";

// The progress of this rank as the collective tells it to the others, and the collective's as the
// control thread tells it to espalierd. Read from the communication thread.
struct Gauge {
  ProgressBoard& board;
  std::atomic<Collective*> collective{nullptr};

  int64_t Read() {
    if (Collective* c = collective.load()) board.collective = c->stats().completed;
    return board.step + board.work + board.collective;
  }
};

struct JoinedWorld {
  std::unique_ptr<Collective> collective;
  MpiCollective* mpi = nullptr;  // the same, when it is MPI
};

std::string HostName() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "localhost";
}

absl::StatusOr<std::unique_ptr<ControlClient>> MakeClient(const WorkerOptions& options,
                                                          const v1::JobSpec& spec) {
  if (!options.coordinator.empty()) {
    const char* token = std::getenv("ESPALIER_TOKEN_FILE");
    ASSIGN_OR_RETURN(ChannelTarget target,
                     MakeTarget(options.coordinator, options.tls, token == nullptr ? "" : token));
    return MakeAttachClient({.target = ByOwnSocket(std::move(target)),
                             .on_fenced =
                                 [](const absl::Status& reason) {
                                   LogError(absl::StrCat("fenced: ", reason.message()));
                                   LeaveAtOnce(WorkerExit::kFenced);
                                 }},
                            RealClock());
  }
  StandaloneOptions standalone;
  *standalone.welcome.mutable_spec() = spec;
  standalone.welcome.set_generation(1);
  standalone.welcome.set_checkpoint_directory(kStandaloneCheckpoints);
  standalone.welcome.mutable_directive()->set_run_state(v1::RUN_STATE_RUN);
  return MakeStandaloneClient(std::move(standalone), RealClock());
}

std::string NodeOf(const WorkerOptions& options) {
  return options.node.empty() ? HostName() : options.node;
}

v1::Hello MakeHello(const WorkerOptions& options, const LaunchEnvironment& environment,
                    const v1::JobSpec& spec) {
  v1::Hello hello;
  hello.set_job_id(options.job_id);
  hello.set_generation(options.generation);
  hello.set_rank(environment.rank);
  hello.set_world_size(environment.ranks);
  hello.set_node(NodeOf(options));
  hello.set_pid(getpid());
  hello.set_version(ESPALIER_VERSION);
  if (options.job_id.empty()) {
    *hello.mutable_external_spec() = spec;
    hello.set_external_id(environment.run_id.empty() ? absl::StrCat(HostName(), ".", getpid())
                                                     : environment.run_id);
  }
  return hello;
}

OpenMpiSettings TransportOf(const v1::JobSpec& spec) {
  OpenMpiSettings transport;
  transport.links = spec.parallel().links();
  transport.socket_buffer_bytes = spec.parallel().socket_buffer_bytes();
  return transport;
}

absl::StatusOr<JoinedWorld> JoinWorld(const WorkerOptions& options, const v1::JobSpec& spec,
                                      const LaunchEnvironment& environment, Gauge& gauge) {
  const absl::Duration timeout = absl::Seconds(spec.health().failure_timeout_seconds());
  JoinedWorld world;
  if (!environment.under_mpirun) {
    world.collective = std::move(InProcessGroup(1, timeout)[0]);
    return world;
  }
  MpiOptions mpi;
  mpi.transport = TransportOf(spec);
  mpi.ranks = options.rank_count;
  mpi.chunk_bytes = spec.parallel().chunk_bytes();
  mpi.depth = spec.parallel().depth();
  mpi.start_timeout = absl::Seconds(spec.launch().timeout_seconds());
  mpi.failure_timeout = timeout;
  mpi.work = [&gauge] { return gauge.Read(); };
  ASSIGN_OR_RETURN(std::unique_ptr<MpiCollective> started, MpiCollective::Start(mpi, RealClock()));
  world.mpi = started.get();
  world.collective = std::move(started);
  gauge.collective = world.mpi;
  return world;
}

absl::Status CheckRankCount(const WorkerOptions& options, const LaunchEnvironment& environment) {
  if (options.rank_count == 0 || options.rank_count == environment.ranks) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("mpirun started ", environment.ranks, " ranks and --rank-count asks for ",
                   options.rank_count, "; a smaller world is never used in silence"));
}

// Work that hangs has a rank, which the others waited for: that rank's failure, no lost peer.
v1::Outcome OutcomeOf(const absl::Status& status) {
  const bool hung = absl::IsDeadlineExceeded(status) && !FailedRanks(status).empty();
  return ExitOf(status) == WorkerExit::kLost && !hung ? v1::OUTCOME_LOST : v1::OUTCOME_FAILED;
}

// Longer than for a step: to put gigabytes on a disk may be one call of the system.
absl::Duration PatienceOf(const v1::JobSpec& spec) {
  return std::max(absl::Minutes(1), 6 * absl::Seconds(spec.health().failure_timeout_seconds()));
}

void SayGoodbye(ControlClient& client, const v1::Finished& finished) {
  if (const absl::Status sent = client.Finish(finished, kFarewell); !sent.ok()) {
    LogWarning(absl::StrCat("espalierd was not told the end: ", sent.message()));
  }
}

// Tells espalierd and goes, while nothing that belongs to MPI has been taken down.
[[noreturn]] void Fail(ControlClient& client, const absl::Status& status) {
  LogError(status.message());
  v1::Finished finished;
  finished.set_outcome(OutcomeOf(status));
  finished.set_reason(std::string(status.message()));
  finished.set_next_step(client.progress().step);
  finished.set_code(static_cast<int32_t>(status.code()));
  for (const int32_t rank : FailedRanks(status)) finished.add_failed_ranks(rank);
  for (const int32_t rank : SilentPeers(status)) finished.add_silent_ranks(rank);
  finished.set_of_their_nodes(IsOfTheirNodes(status));
  SayGoodbye(client, finished);
  LeaveAtOnce(ExitOf(status));
}

void PrintResult(const SessionResult& result, const TaskUnits& units) {
  absl::PrintF("%s after step %d\n",
               result.outcome == v1::OUTCOME_COMPLETED ? "completed" : "stopped",
               result.step.value());
  if (!result.why_early.empty()) absl::PrintF("ended early: %s\n", result.why_early);
  if (result.evaluation) {
    absl::PrintF("validation loss: %.4f (%s; %d %s)\n", result.evaluation->loss, units.loss,
                 result.evaluation->tokens, units.of_evaluations);
  }
  if (!result.checkpoint.empty()) absl::PrintF("checkpoint: %s\n", result.checkpoint);
}

// From the attached client to the end of training; leaves MPI in order when all went well.
absl::StatusOr<SessionResult> Train(const WorkerOptions& options, const v1::Welcome& welcome,
                                    const LaunchEnvironment& environment, ControlClient& client) {
  const int threads = options.threads != 0 ? options.threads : welcome.spec().launch().threads();
  RETURN_IF_ERROR(SetComputeThreads(threads, environment.local_ranks));
  cpu::OnEachThread(MarkComputeThread);
  static Gauge& gauge = *new Gauge{client.progress()};  // the communication thread may outlive us
  // Others may be long in coming. The session asks for the same, and gives it back in a pause.
  absl::StatusOr<std::unique_ptr<KeepAwake>> awake = KeepAwake::Start("Espalier begins to train");
  ASSIGN_OR_RETURN(const JoinedWorld world, JoinWorld(options, welcome.spec(), environment, gauge));
  RETURN_IF_ERROR(ProveWorld(*world.collective, welcome.world_secret()));
  SessionOptions session_options;
  session_options.welcome = welcome;
  RETURN_IF_ERROR(ExpandJobPaths(*session_options.welcome.mutable_spec()));
  session_options.device = options.device;
  session_options.node = NodeOf(options);
  session_options.warm = options.warm;
  session_options.pace = options.pace;
  session_options.local_rank = environment.local_rank;
  // espalierd launches one worker for a node, several of which may be one machine.
  session_options.worker_of_node = options.job_id.empty() ? environment.local_rank : 0;
  session_options.local_ranks = environment.local_ranks;
  session_options.links = world.mpi == nullptr ? 0 : world.mpi->links();
  const RankContext context{*world.collective, RealClock(), client.progress(),
                            PatienceOf(welcome.spec())};
  // A checkpoint whose disk hangs may still be at work in it when the run has stopped.
  WorkerSession& session = *new WorkerSession(context, client, std::move(session_options));
  awake = absl::CancelledError();
  absl::StatusOr<SessionResult> result = session.Run();
  if (!result.ok()) Fail(client, result.status());
  v1::Finished finished;
  finished.set_outcome(result->outcome);
  finished.set_next_step(result->step.value());
  finished.set_reason(result->why_early);
  SayGoodbye(client, finished);
  // A rank whose last message had to wait comes here that much later.
  if (world.mpi != nullptr) RETURN_IF_ERROR(world.mpi->Finish(2 * kFarewell));
  return result;
}

// A job file; espalierd gives what it launches its steps.
absl::StatusOr<v1::JobSpec> LoadJob(const WorkerOptions& options) {
  ASSIGN_OR_RETURN(v1::JobSpec spec, LoadJobFile(options.job_file, options.overrides));
  if (!NeedsSamples(spec)) return spec;
  ASSIGN_OR_RETURN(const std::string folder, ExpandHome(spec.data().path()));
  ASSIGN_OR_RETURN(const int64_t samples,
                   CountTrainingSamples(folder, {.sequence_length = spec.data().sequence_length(),
                                                 .packing = spec.data().packing()}));
  RETURN_IF_ERROR(ResolveEpochs(samples * CompletionsOfSample(spec), spec));
  return spec;
}

absl::Status Run(const WorkerOptions& options, const LaunchEnvironment& environment) {
  RETURN_IF_ERROR(CheckRankCount(options, environment));
  v1::JobSpec spec;
  if (!options.job_file.empty()) {
    ASSIGN_OR_RETURN(spec, LoadJob(options));
    // Before the client's threads, which may read the environment. What espalierd launches has it
    // all from mpirun.
    const bool one_host = environment.ranks > 1 && environment.local_ranks == environment.ranks;
    if (environment.under_mpirun) SetMissingOpenMpiParameters(TransportOf(spec), one_host);
  }
  ASSIGN_OR_RETURN(std::unique_ptr<ControlClient> client, MakeClient(options, spec));
  InstallLastWords(client->progress(), environment.rank);
  ASSIGN_OR_RETURN(const v1::Welcome welcome,
                   client->Attach(MakeHello(options, environment, spec), kAttachTimeout));
  const absl::StatusOr<SessionResult> result = Train(options, welcome, environment, *client);
  if (!result.ok()) Fail(*client, result.status());
  if (options.coordinator.empty() && environment.rank == 0)
    PrintResult(*result, UnitsOf(spec.train().task()));
  return absl::OkStatus();
}

}  // namespace

WorkerExit RunWorker(const WorkerOptions& options) {
  const LaunchEnvironment environment = ReadLaunchEnvironment(EnvironmentVariable);
  if (environment.under_mpirun) SetLogPrefix(absl::StrCat("rank ", environment.rank));
  const absl::Status status = Run(options, environment);
  if (!status.ok()) LogError(status.message());
  return ExitOf(status);
}

}  // namespace espalier
