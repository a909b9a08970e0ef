#include "worker/session.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <functional>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "common/observe/log.h"
#include "common/platform/platform.h"
#include "worker/data/prefetch.h"
#include "worker/memory/allocator.h"
#include "worker/model/self_check.h"
#include "worker/state/warm_copies.h"
#include "worker/tensor/device.h"
#include "worker/tensor/torch_compat.h"
#include "worker/train/reporter.h"

namespace espalier {
namespace {

constexpr absl::Duration kLogInterval = absl::Seconds(2);

// A renewal may be under way. Longer waits are the boundary's, where all ranks are in touch.
constexpr int kLeaseSeconds = 60;
absl::Status AwaitLease(ControlClient& client, int seconds) {
  for (int second = 0; second < seconds; ++second) {
    ASSIGN_OR_RETURN(const bool leased, client.WaitForLease(absl::Seconds(1)));
    if (leased) return absl::OkStatus();
  }
  return absl::UnavailableError(
      absl::StrCat("espalierd has not renewed this worker's lease for ", seconds,
                   " s and may have started another generation, so nothing may be written"));
}

// A folder that has no checkpoints is claimed by nobody. What is not written now is later, so that
// nobody waits long.
absl::Status MayPractise(ControlClient& client, const CheckpointStore& store) {
  RETURN_IF_ERROR(AwaitLease(client, /*seconds=*/1));
  return store.CheckWriter();
}

std::string CheckpointFolder(const v1::Welcome& welcome) {
  const std::string& wanted = welcome.spec().checkpoint().directory();
  return wanted.empty() ? welcome.checkpoint_directory() : wanted;
}

// Where the segments are registered; empty: nothing is kept in memory.
std::string WarmFolder(const SessionOptions& options) {
  const std::string& told = options.welcome.warm_folder();
  if (!told.empty() || !options.warm) return told;
  return JoinPath(CheckpointFolder(options.welcome), ".warm");
}

std::string WriterName(const v1::Welcome& welcome) {
  std::array<char, 256> host{};
  if (gethostname(host.data(), host.size() - 1) != 0) host[0] = '\0';
  const std::string process = absl::StrCat("process ", getpid(), " on ", host.data());
  if (welcome.job_id().empty()) return absl::StrCat("a standalone run, ", process);
  return absl::StrCat("generation ", welcome.generation(), " of job ", welcome.job_id(), ", ",
                      process);
}

std::string Describe(const DecoderConfig& config, int64_t parameters) {
  return absl::StrFormat("%d x %d decoder, %.2f M parameters", config.layers, config.hidden_size,
                         static_cast<double>(parameters) / 1e6);
}

// A paused rank shows that it lives more often than failure_timeout asks for.
absl::Duration PauseInterval(const v1::JobSpec& spec) {
  return absl::Seconds(std::min(1.0, spec.health().failure_timeout_seconds() / 4));
}

// A run that goes on may find no more within reach than what is left here, where its checkpoint is
// not in this node's folder: the agent gives that back when espalierd can do without.
bool NeedsNoMemory(v1::Outcome outcome, const v1::Welcome& welcome, const CheckpointSaver& saver) {
  const bool looked_after = !welcome.warm_folder().empty();
  return outcome == v1::OUTCOME_COMPLETED || saver.holds_last() || !looked_after;
}

// All by which libraries divide a product.
std::string ComputedBy(torch::Device device) {
  const absl::StatusOr<Processor> processor = ReadProcessor();
  const int threads = at::get_num_threads();
  return absl::StrCat(device.str(), " with ", threads,
                      threads == 1 ? " thread on " : " threads on ",
                      processor.ok() ? processor->model : "an unknown processor", ", LibTorch ",
                      TorchVersion())
      .substr(0, kComputedByBytes - 1);
}

// An error that the ranks have shared before the first step. Once the job has got on, whatever a
// start lacks there was elsewhere: that a volume, a file or the memory for it is missing here is
// not the job's.
absl::Status OfTheirNodesOnceTrained(const v1::Welcome& welcome, absl::Status shared) {
  if (welcome.least_step() == 0 && !welcome.has_got_on()) return shared;
  switch (shared.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kDataLoss:
      return OfTheirNodes(std::move(shared));
    default:
      return shared;
  }
}

// The first setting that needs a validation split; null: none does.
const char* NeedsValidation(const v1::JobSpec& spec) {
  if (spec.checkpoint().keep_best() > 0) return "checkpoint.keep_best";
  if (spec.evaluate().patience() > 0) return "evaluate.patience";
  if (spec.train().schedule().plateau_patience() > 0) return "train.schedule.plateau_patience";
  return nullptr;
}

}  // namespace

WorkerSession::WorkerSession(const RankContext& context, ControlClient& client,
                             SessionOptions options)
    : context_(context),
      client_(client),
      options_(std::move(options)),
      spec_(options_.welcome.spec()) {}

absl::StatusOr<SessionResult> WorkerSession::Run() {
  absl::StatusOr<SessionResult> result = absl::InternalError("the session has not run");
  // Reading and fetching what it begins with may take long. Steps say so where it cannot be had.
  absl::StatusOr<std::unique_ptr<KeepAwake>> awake = KeepAwake::Start("Espalier begins to train");
  if (awake.ok()) awake_ = *std::move(awake);
  RETURN_IF_ERROR(CatchTorch("between the stages of the session", [&] { result = RunStages(); }));
  return result;
}

absl::StatusOr<SessionResult> WorkerSession::RunStages() {
  const auto together = [this](absl::Status (WorkerSession::*stage)()) {
    return OfTheirNodesOnceTrained(
        options_.welcome, RunTogether(context_, [this, stage] { return (this->*stage)(); }));
  };
  RETURN_IF_ERROR(together(&WorkerSession::OpenInputs));
  RETURN_IF_ERROR(CheckSameRun(context_, inputs_.identity));
  RETURN_IF_ERROR(together(&WorkerSession::BuildReplica));
  RETURN_IF_ERROR(OfTheirNodesOnceTrained(options_.welcome, PrepareCheckpoints()));
  RETURN_IF_ERROR(together(&WorkerSession::KeepWarm));
  ASSIGN_OR_RETURN(const StartState start,
                   AgreeOnStart(context_, *store_, inputs_.identity, *replica_, WhatItNeeds()));
  ReleaseFreeMemory();  // what reading the data and the start state took
  ReportReady(start);
  return Train();
}

absl::Status WorkerSession::OpenInputs() {
  ASSIGN_OR_RETURN(inputs_, OpenJobInputs(spec_));
  return absl::OkStatus();
}

int64_t WorkerSession::MemoryLimit() const {
  return MemoryLimitOf(spec_, options_.welcome.memory_limit_bytes());
}

absl::Status WorkerSession::BuildReplica() {
  const std::string name = options_.device.empty() ? spec_.launch().device() : options_.device;
  ASSIGN_OR_RETURN(const SelectedDevice device,
                   SelectDevice({.name = name, .local_rank = options_.local_rank}));
  RETURN_IF_ERROR(FitMemory(spec_, inputs_.config, device.device,
                            {.memory_limit_bytes = MemoryLimit(),
                             .ranks = context_.collective.world_size(),
                             .local_ranks = options_.local_ranks}));
  ASSIGN_OR_RETURN(const Parameters::Options planned,
                   ParameterOptions(inputs_.config, spec_.train(), device.device));
  ASSIGN_OR_RETURN(
      const std::optional<double> self_test,
      SelfTestBeforeTraining(device.device, planned.compute_type, inputs_.config.architecture));
  ASSIGN_OR_RETURN(replica_, Replica::Create(inputs_.config, spec_.train(), device.device));
  if (spec_.train().reproducible()) {
    inputs_.identity.computed_by = ComputedBy(replica_->parameters().device());
  }
  const torch::Tensor& computed_with = replica_->parameters().Head();
  device_text_ = absl::StrCat(device.description, ", ", PrecisionName(computed_with.scalar_type()),
                              replica_->optimizer().moments().in_8_bits() ? ", int8 moments" : "");
  if (self_test) absl::StrAppendFormat(&device_text_, ", self-test within %.1g", *self_test);
  const SlotStates::Size kept = inputs_.task->Keeps(spec_, inputs_.config);
  if (kept.slots > 0) RETURN_IF_ERROR(replica_->slots().Keep(kept));
  return replica_->PrepareExchange(context_.collective.world_size(), spec_);
}

absl::Status WorkerSession::KeepWarm() {
  const std::string registry = WarmFolder(options_);
  if (registry.empty()) return absl::OkStatus();
  if (replica_->has_frozen()) RETURN_IF_ERROR(SetInitialWeights(inputs_.identity.spec, *replica_));
  ASSIGN_OR_RETURN(warm_, OpenWarmState({.registry = registry,
                                         .job = options_.welcome.job_id(),
                                         .node = options_.node,
                                         .worker = options_.worker_of_node,
                                         .history = options_.welcome.history(),
                                         .generation = options_.welcome.generation()},
                                        inputs_.identity, *replica_));
  return absl::OkStatus();
}

absl::Status WorkerSession::PrepareCheckpoints() {
  store_.emplace(
      PosixFileSystem(),
      CheckpointStore::Options{.directory = CheckpointFolder(options_.welcome),
                               .keep = spec_.checkpoint().keep(),
                               .keep_best = spec_.checkpoint().keep_best(),
                               .writer = WriterName(options_.welcome),
                               .permit = [this] { return AwaitLease(client_, kLeaseSeconds); }});
  ASSIGN_OR_RETURN(copy_, DivideCopies(context_, *store_, spec_.checkpoint()));
  return absl::OkStatus();
}

StartOptions WorkerSession::WhatItNeeds() {
  StartOptions needs;
  needs.least = Step(options_.welcome.least_step());
  needs.least_held_by = options_.welcome.least_held_by();
  needs.warm = warm_.get();
  needs.on_found = [this](Step step, const std::string& folder) {
    v1::AttachRequest message;
    message.mutable_found()->set_step(step.value());
    message.mutable_found()->set_path(folder);
    client_.Report(std::move(message));
  };
  return needs;
}

void WorkerSession::ReportReady(const StartState& start) {
  const int64_t parameters = replica_->parameters().elements();
  const int threads = at::get_num_threads();
  LogInfo(
      absl::StrCat(Describe(replica_->config(), parameters), " on ", device_text_, ", ", threads,
                   threads == 1 ? " thread, " : " threads, ",
                   options_.links == 0 ? "no MPI" : absl::StrCat(options_.links, " links per peer"),
                   "; begins with step ", start.step.value(), " from ", start.origin));
  v1::AttachRequest message;
  message.mutable_ready()->set_next_step(start.step.value());
  message.mutable_ready()->set_device(device_text_);
  message.mutable_ready()->set_parameters(parameters);
  message.mutable_ready()->set_links(options_.links);
  message.mutable_ready()->set_data_sha256(inputs_.identity.data_hash);
  client_.Report(std::move(message));
}

PracticePlace WorkerSession::WhereItPractises() {
  return {.context = context_,
          .folder = CheckpointFolder(options_.welcome),
          .writes = copy_.keeps,
          .memory_limit_bytes = MemoryLimit(),
          .local_ranks = options_.local_ranks,
          .slow_down = options_.pace.slow_down,
          .learns_from = replica_->counters().learns_from,
          .may_write = [this] { return MayPractise(client_, *store_); }};
}

absl::StatusOr<SessionResult> WorkerSession::Train() {
  ASSIGN_OR_RETURN(const SampleOrder order,
                   SampleOrder::Create(OrderOptions(spec_, inputs_.task->training())));
  PrefetchedSamples samples(inputs_.task->training(), order, {});
  const absl::StatusOr<std::unique_ptr<Practice>> practice =
      inputs_.task->MakePractice(WhereItPractises());
  ASSIGN_OR_RETURN(const SharedOutcome opened, ShareStatus(context_.collective, practice.status()));
  RETURN_IF_ERROR(OfTheirNodesOnceTrained(options_.welcome, opened.status));
  std::optional<Evaluator> evaluator;
  if (inputs_.task->validation() != nullptr) {
    evaluator.emplace(context_, replica_->model(), *inputs_.task,
                      Evaluator::Options{.max_sequences = spec_.evaluate().max_sequences(),
                                         .reproducible = spec_.train().reproducible(),
                                         .practice = practice->get()});
  } else if (const char* needs = NeedsValidation(spec_); needs != nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(needs,
                     " needs a validation split and the data has none; prepare the data with one, "
                     "or set it to 0"));
  }
  std::unique_ptr<SampleLog> sample_log;
  if (!spec_.launch().sample_log().empty()) {
    ASSIGN_OR_RETURN(sample_log,
                     SampleLog::Open(context_, PosixFileSystem(), spec_.launch().sample_log()));
  }
  CheckpointSaver saver(context_, client_, *store_, inputs_.identity, copy_);
  ConsoleReporter console(context_.clock, spec_.train().steps(), kLogInterval,
                          UnitsOf(spec_.train().task()));
  const bool first = context_.collective.rank() == Rank(0);
  synchroniser_.emplace(
      context_.collective,
      AllReduceSynchroniser::Parts{replica_->parameters(), replica_->optimizer(),
                                   replica_->residual(), replica_->host_gradient(),
                                   &replica_->exact_sums(), &replica_->counters().loss_scale},
      AllReduceSynchroniser::Options{.wire = WireOf(spec_.parallel().gradient_dtype())});
  const absl::StatusOr<std::unique_ptr<Trainer>> trainer = Trainer::Create(
      spec_,
      {.context = context_,
       .client = client_,
       .replica = *replica_,
       .synchroniser = *synchroniser_,
       .task = *inputs_.task,
       .samples = samples,
       .practice = practice->get(),
       .saver = saver,
       .warm = warm_.get(),
       .evaluator = evaluator ? &*evaluator : nullptr,
       .sample_log = sample_log.get(),
       .observer = first ? &console : nullptr},
      {.boundary = {.pause_interval = PauseInterval(spec_),
                    .keep_awake = [] { return KeepAwake::Start("Espalier trains a model"); }},
       .memory = {MemoryLimit(), options_.local_ranks},
       .pace = options_.pace});
  ASSIGN_OR_RETURN(const SharedOutcome made, ShareStatus(context_.collective, trainer.status()));
  RETURN_IF_ERROR(made.status);
  awake_.reset();
  const absl::StatusOr<v1::Outcome> outcome = (*trainer)->Run();
  const bool saved = outcome.ok() && (*trainer)->saved_for_good();
  if (warm_ != nullptr && saved && NeedsNoMemory(*outcome, options_.welcome, saver)) {
    warm_->Remove();
  } else if (warm_ != nullptr) {
    warm_->Finish();
  }
  RETURN_IF_ERROR(outcome.status());
  const bool completed = *outcome == v1::OUTCOME_COMPLETED;
  const std::string nothing = completed ? (*trainer)->learnt_nothing() : "";
  if (first && !nothing.empty()) LogWarning(absl::StrCat("the job has learnt nothing: ", nothing));
  return SessionResult{*outcome, replica_->step(), (*trainer)->last_evaluation(),
                       saver.last_folder(), completed ? (*trainer)->why_early() : ""};
}

}  // namespace espalier
