#include "tests/worker/support/training_world.h"

#include <ATen/Parallel.h>

#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/base/status_macros.h"
#include "common/config/job_file.h"
#include "worker/collective/in_process.h"
#include "worker/data/example_table.h"
#include "worker/state/checkpoint_copies.h"
#include "worker/state/start_state.h"
#include "worker/state/warm_copies.h"
#include "worker/sync/all_reduce.h"
#include "worker/task/next_token.h"
#include "worker/train/trainer.h"

namespace espalier {
namespace {

constexpr int64_t kVocabulary = 50, kLength = 32;
// How long a rank that has failed stays, as a process that is being ended does.
constexpr absl::Duration kLeaving = absl::Seconds(3);

// Words of a made-up language, so that there is something to learn.
std::shared_ptr<const TokenRow> MakeText(uint64_t seed) {
  SplitMix64 random(seed);
  std::vector<int64_t> tokens;
  while (tokens.size() < 8033) {
    const uint64_t word = random.Below(12);
    for (uint64_t i = 0; i < 3 + word % 4; ++i) tokens.push_back((word * 7 + i * 3) % kVocabulary);
  }
  tokens.resize(8001);  // 250 windows of 32
  return std::make_shared<VectorTokenRow>(std::move(tokens));
}

NextToken TaskOfText(int64_t length) {
  return NextToken(std::make_shared<WindowTable>(MakeText(1), length),
                   std::make_shared<WindowTable>(MakeText(2), length));
}

DecoderConfig ConfigOf(const WorldOptions& options) {
  if (options.config) return *options.config;
  DecoderConfig config = TinyConfig();
  config.tie_word_embeddings = options.tied;
  config.layers = options.layers;
  config.architecture = options.architecture;
  if (config.architecture == Architecture::kGpt2) config.kv_heads = config.heads;
  return config;
}

// Null: the world keeps none.
absl::StatusOr<std::unique_ptr<WarmState>> OpenWarm(const WorldOptions& options, int rank,
                                                    const RunIdentity& identity, Replica& replica) {
  if (options.warm.empty()) return nullptr;
  if (replica.has_frozen()) RETURN_IF_ERROR(SetInitialWeights(identity.spec, replica));
  const WarmPlace place{.registry = options.warm, .node = "studio", .worker = rank};
  if (options.warm_copies) return WarmCopies::Open(place, identity, replica, RealClock());
  return OpenWarmState(place, identity, replica);
}

std::string FolderOf(const WorldOptions& options, int rank) {
  return options.own_folders ? absl::StrCat(options.checkpoints, "/", rank) : options.checkpoints;
}

CheckpointStore StoreOf(const WorldOptions& options, int rank) {
  return CheckpointStore(
      options.checkpoint_files ? *options.checkpoint_files(rank) : PosixFileSystem(),
      {.directory = FolderOf(options, rank), .keep = options.spec.checkpoint().keep()});
}

StartOptions StartOf(const WorldOptions& options, int rank) {
  StartOptions start = options.start;
  start.on_found = [&options, rank](Step step, const std::string& path) {
    if (options.on_found) options.on_found(rank, step, path);
  };
  return start;
}

PracticePlace PlaceOf(const WorldOptions& options, const RankContext& context, const CopyRole& role,
                      const CheckpointStore& store, Replica& replica) {
  return {.context = context,
          .folder = FolderOf(options, static_cast<int>(context.collective.rank().value())),
          .writes = role.keeps,
          .learns_from = replica.counters().learns_from,
          .may_write = [&store] { return store.CheckWriter(); }};
}

absl::Status TrainRank(const WorldOptions& options, Collective& own, RankResult& result) {
  std::unique_ptr<Collective> wrapped;
  if (options.wrap_collective) wrapped = options.wrap_collective(own);
  Collective& collective = wrapped != nullptr ? *wrapped : own;
  const int rank = static_cast<int>(collective.rank().value());
  const v1::JobSpec& spec = options.spec;
  const RankContext context{collective, RealClock(), result.client->progress()};
  const DecoderConfig config = ConfigOf(options);
  ASSIGN_OR_RETURN(result.replica, Replica::Create(config, spec.train(), options.device,
                                                   {.arena_elements = options.arena_elements,
                                                    .values_on_host = options.values_on_host}));
  RunIdentity identity{.spec = spec, .data_hash = "made up"};
  if (options.computed_by) identity.computed_by = options.computed_by(rank);
  const NextToken own_task = TaskOfText(spec.data().sequence_length());
  const Task& task = options.task != nullptr ? *options.task : own_task;
  identity.training_samples = task.training()->size();
  if (const SlotStates::Size kept = task.Keeps(spec, config); kept.slots > 0) {
    RETURN_IF_ERROR(result.replica->slots().Keep(kept));
  }
  RETURN_IF_ERROR(result.replica->PrepareExchange(collective.world_size(), spec));
  CheckpointStore store = StoreOf(options, rank);
  ASSIGN_OR_RETURN(const CopyRole role, DivideCopies(context, store, spec.checkpoint()));
  StartOptions start = StartOf(options, rank);
  ASSIGN_OR_RETURN(const std::unique_ptr<WarmState> warm,
                   OpenWarm(options, rank, identity, *result.replica));
  start.warm = warm.get();
  ASSIGN_OR_RETURN(result.start, AgreeOnStart(context, store, identity, *result.replica, start));
  ASSIGN_OR_RETURN(const SampleOrder order,
                   SampleOrder::Create(OrderOptions(spec, task.training())));
  std::unique_ptr<SampleSource> source = std::make_unique<DirectSamples>(task.training(), order);
  if (options.wrap) source = options.wrap(rank, *result.replica, std::move(source));
  std::unique_ptr<SampleLog> sample_log;
  if (options.sample_log_files) {
    ASSIGN_OR_RETURN(sample_log, SampleLog::Open(context, *options.sample_log_files(rank),
                                                 options.checkpoints + "/samples"));
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<Practice> practice,
                   task.MakePractice(PlaceOf(options, context, role, store, *result.replica)));
  CheckpointSaver saver(context, *result.client, store, identity, role);
  Evaluator evaluator(context, result.replica->model(), task,
                      {.reproducible = spec.train().reproducible(), .practice = practice.get()});
  AllReduceSynchroniser synchroniser(
      collective,
      {result.replica->parameters(), result.replica->optimizer(), result.replica->residual(),
       result.replica->host_gradient(), &result.replica->exact_sums(),
       &result.replica->counters().loss_scale},
      {.wire = WireOf(spec.parallel().gradient_dtype()),
       .bucket_elements = options.bucket_elements});
  ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer,
                   Trainer::Create(spec,
                                   {.context = context,
                                    .client = *result.client,
                                    .replica = *result.replica,
                                    .synchroniser = synchroniser,
                                    .task = task,
                                    .samples = *source,
                                    .practice = practice.get(),
                                    .saver = saver,
                                    .warm = warm.get(),
                                    .evaluator = options.validation ? &evaluator : nullptr,
                                    .sample_log = sample_log.get()},
                                   {.boundary = {.pause_interval = absl::Milliseconds(20),
                                                 .save_retry_interval = absl::Milliseconds(40),
                                                 .keep_awake = options.keep_awake},
                                    .memory = {.memory_limit_bytes = options.memory_limit_bytes}}));
  result.outcome = trainer->Run();
  if (warm != nullptr) warm->Finish();
  result.fingerprint = result.replica->Fingerprint();
  return result.outcome.status();
}

template <typename T, typename Has, typename Get>
std::vector<T> Select(const std::vector<v1::AttachRequest>& messages, Has has, Get get) {
  std::vector<T> selected;
  for (const v1::AttachRequest& message : messages) {
    if ((message.*has)()) selected.push_back((message.*get)());
  }
  return selected;
}

}  // namespace

v1::Directive ScriptedClient::directive() const {
  absl::MutexLock lock(&mutex_);
  return directive_;
}

bool ScriptedClient::WaitForDirectiveAfter(int64_t number, absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  const auto newer = [&] { return directive_.number() > number; };
  return mutex_.AwaitWithTimeout(absl::Condition(&newer), timeout);
}

void ScriptedClient::Set(const v1::Directive& directive) {
  absl::MutexLock lock(&mutex_);
  directive_ = directive;
}

absl::StatusOr<bool> ScriptedClient::WaitForLease(absl::Duration timeout) {
  return !lease || lease(timeout);
}

void ScriptedClient::Report(v1::AttachRequest message) {
  {
    absl::MutexLock lock(&mutex_);
    messages_.push_back(message);
  }
  if (on_report) on_report(*this, message);
}

std::vector<v1::StepReport> ScriptedClient::steps() const {
  absl::MutexLock lock(&mutex_);
  return Select<v1::StepReport>(messages_, &v1::AttachRequest::has_step, &v1::AttachRequest::step);
}
std::vector<v1::Practised> ScriptedClient::practised() const {
  absl::MutexLock lock(&mutex_);
  return Select<v1::Practised>(messages_, &v1::AttachRequest::has_practised,
                               &v1::AttachRequest::practised);
}
std::vector<v1::DirectiveAck> ScriptedClient::acks() const {
  absl::MutexLock lock(&mutex_);
  return Select<v1::DirectiveAck>(messages_, &v1::AttachRequest::has_ack, &v1::AttachRequest::ack);
}
std::vector<v1::CheckpointReport> ScriptedClient::checkpoints() const {
  absl::MutexLock lock(&mutex_);
  return Select<v1::CheckpointReport>(messages_, &v1::AttachRequest::has_checkpoint,
                                      &v1::AttachRequest::checkpoint);
}
std::vector<v1::EvaluationReport> ScriptedClient::evaluations() const {
  absl::MutexLock lock(&mutex_);
  return Select<v1::EvaluationReport>(messages_, &v1::AttachRequest::has_evaluation,
                                      &v1::AttachRequest::evaluation);
}

v1::JobSpec TinySpec(int64_t steps) {
  v1::JobSpec spec;
  spec.set_name("tiny");
  spec.mutable_data()->set_sequence_length(kLength);
  spec.mutable_train()->set_steps(steps);
  spec.mutable_train()->set_global_batch(16);
  spec.mutable_train()->mutable_schedule()->set_learning_rate(3e-3);
  spec.mutable_train()->mutable_schedule()->set_warmup_steps(5);
  spec.mutable_checkpoint()->set_every_steps(0);
  spec.mutable_evaluate()->set_every_steps(0);
  FillJobDefaults(spec);
  return spec;
}

std::shared_ptr<const ExampleRows> TinyExamples(int64_t count) {
  constexpr int64_t kEnd = kVocabulary - 1;
  std::vector<int64_t> tokens;
  std::vector<ExampleSpan> spans;
  for (int64_t i = 0; i < count; ++i) {
    ExampleSpan span;
    span.prompt = static_cast<int64_t>(tokens.size());
    for (int64_t t = 0; t < 3 + i % 10; ++t) tokens.push_back((i * 5 + t) % 40);
    span.completion = static_cast<int64_t>(tokens.size());
    for (int64_t t = 0; t < 1 + i % 6; ++t) tokens.push_back((i * 5 + t + 7) % 40);
    tokens.push_back(kEnd);
    span.end = static_cast<int64_t>(tokens.size());
    spans.push_back(span);
  }
  return std::make_shared<ExampleTable>(
      *ExampleTable::Create(std::make_shared<VectorTokenRow>(std::move(tokens)),
                            std::make_shared<VectorExampleIndex>(std::move(spans)),
                            {.sequence_length = kLength, .end_of_text = kEnd}));
}

DecoderConfig TinyConfig() {
  DecoderConfig config;
  config.vocab_size = kVocabulary;
  config.hidden_size = 32;
  config.intermediate_size = 64;
  config.layers = 2;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 8;
  return config;
}

v1::Directive StopDirective(StopKeeps keeps) {
  v1::Directive stop;
  stop.set_number(1);
  stop.set_run_state(v1::RUN_STATE_STOP);
  stop.set_checkpoint_before_stop(keeps == StopKeeps::kCheckpoint);
  return stop;
}

std::function<void(int rank, ScriptedClient& client)> StopAfter(int64_t steps, StopKeeps keeps) {
  return [steps, keeps](int rank, ScriptedClient& client) {
    if (rank != 0) return;
    client.on_report = [steps, keeps](ScriptedClient& to, const v1::AttachRequest& message) {
      if (message.has_step() && message.step().step() + 1 == steps) to.Set(StopDirective(keeps));
    };
  };
}

std::vector<RankResult> TrainWorld(const WorldOptions& options) {
  at::set_num_threads(1);
  std::vector<std::unique_ptr<Collective>> group = InProcessGroup(options.ranks, absl::Seconds(60));
  std::vector<RankResult> results(options.ranks);
  std::vector<std::thread> threads;
  absl::Mutex mutex;
  int ended = 0;
  const auto all_ended = [&] { return ended == options.ranks; };
  for (int rank = 0; rank < options.ranks; ++rank) {
    results[rank].client = std::make_unique<ScriptedClient>();
    if (options.script) options.script(rank, *results[rank].client);
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);
      RankResult& result = results[rank];
      const absl::Status status = TrainRank(options, *group[rank], result);
      absl::MutexLock lock(&mutex);
      ++ended;
      if (status.ok()) return;
      result.outcome = status;
      // Ranks that end alike get there by themselves; one that waits for this rank never would.
      mutex.AwaitWithTimeout(absl::Condition(&all_ended), kLeaving);
      group[rank]->Abort(absl::UnavailableError("a rank has left"));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (RankResult& result : results) {
    for (const v1::StepReport& step : result.client->steps()) result.losses.push_back(step.loss());
  }
  return results;
}

}  // namespace espalier
