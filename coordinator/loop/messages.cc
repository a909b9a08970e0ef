#include "coordinator/loop/messages.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/config/job_file.h"
#include "coordinator/core/liveness.h"
#include "coordinator/journal/record.h"

namespace espalier {
namespace {

Event FromHello(StreamId stream, const v1::Hello& hello) {
  WorkerAttached event;
  event.stream = stream;
  event.worker = {JobId(hello.job_id()), Generation(hello.generation()), Rank(hello.rank())};
  event.world_size = hello.world_size();
  event.node = NodeName(hello.node());
  event.pid = hello.pid();
  event.version = hello.version();
  if (hello.has_external_spec()) event.external_spec = hello.external_spec();
  event.external_id = hello.external_id();
  return event;
}

// The enums of the core have the numbers of the protocol, less its "unspecified".
Phase ToPhase(v1::Phase phase) {
  const bool known = v1::Phase_IsValid(phase) && phase != v1::PHASE_UNSPECIFIED;
  return known ? static_cast<Phase>(phase) : Phase::kStarting;
}

Event FromProgress(StreamId stream, const v1::Progress& progress) {
  WorkerHeartbeat event;
  event.stream = stream;
  event.counters = {Step(progress.step()), ToPhase(progress.phase()), progress.collective(),
                    progress.work(), progress.layer()};
  event.memory_bytes = progress.memory_bytes();
  event.memory_peak_bytes = progress.memory_peak_bytes();
  event.beat = progress.beat();
  return event;
}

// Of the step's seconds all that others may have to wait for.
double OwnSeconds(const v1::StepReport& step) {
  return step.compute_seconds() + step.data_wait_seconds() + step.update_seconds();
}

double PracticeSeconds(const v1::StepReport& accounts) {
  return accounts.rollout_seconds() + accounts.reward_seconds();
}

Event FromStep(StreamId stream, const v1::StepReport& step) {
  return WorkerStepReported{stream,
                            {.step = Step(step.step()),
                             .loss = step.loss(),
                             .tokens = step.tokens(),
                             .gradient_norm = step.gradient_norm(),
                             .learning_rate = step.learning_rate(),
                             .skipped = step.skipped(),
                             .shard = step.shard(),
                             .step_seconds = step.step_seconds(),
                             .own_seconds = OwnSeconds(step),
                             .practice_seconds = PracticeSeconds(step)}};
}

absl::StatusCode ToCode(int32_t code) {
  const bool known = code > static_cast<int32_t>(absl::StatusCode::kOk) &&
                     code <= static_cast<int32_t>(absl::StatusCode::kUnauthenticated);
  return known ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown;
}

std::optional<Event> FromFinished(StreamId stream, const v1::Finished& finished) {
  const bool known =
      v1::Outcome_IsValid(finished.outcome()) && finished.outcome() != v1::OUTCOME_UNSPECIFIED;
  if (!known) return std::nullopt;
  WorkerFinished event{stream, static_cast<Outcome>(finished.outcome()), finished.reason(),
                       Step(finished.next_step()), ToCode(finished.code())};
  for (const int32_t rank : finished.failed_ranks()) event.failed_ranks.emplace_back(rank);
  for (const int32_t rank : finished.silent_ranks()) event.silent_ranks.emplace_back(rank);
  event.of_their_nodes = finished.of_their_nodes();
  return event;
}

Event FromCheckpoint(StreamId stream, const v1::CheckpointReport& report) {
  WorkerCheckpointed event;
  event.stream = stream;
  event.checkpoint.step = Step(report.step());
  event.checkpoint.path = report.path();
  event.checkpoint.bytes = report.bytes();
  event.checkpoint.seconds = report.seconds();
  event.checkpoint.error = report.error();
  return event;
}

Event FromEvaluation(StreamId stream, const v1::EvaluationReport& report) {
  return WorkerEvaluated{stream,
                         {.step = Step(report.step()),
                          .loss = report.loss(),
                          .without_gain = report.without_gain(),
                          .reductions = report.reductions(),
                          .rate_factor = report.rate_factor()},
                         report.lowers_rate()};
}

Event FromCall(RequestId id, const v1::SubmitRequest& request) {
  return SubmitRequested{id, request.request_id(), request.spec(), request.yaml()};
}
Event FromCall(RequestId id, const v1::PauseRequest& request) {
  return PauseRequested{id, JobId(request.job_id()),
                        request.hard() ? PauseKind::kHard : PauseKind::kSoft};
}
Event FromCall(RequestId id, const v1::ResumeRequest& request) {
  return ResumeRequested{id, JobId(request.job_id()), request.from_scratch()};
}
Event FromCall(RequestId id, const v1::CancelRequest& request) {
  return CancelRequested{id, JobId(request.job_id()), request.checkpoint()};
}
Event FromCall(RequestId id, const v1::CheckpointRequest& request) {
  return CheckpointRequested{id, JobId(request.job_id())};
}
template <typename NodeRequest>
Event FromCall(RequestId id, NodeRequest request) {
  request.request = id;
  return request;
}

}  // namespace

std::optional<Event> WorkerEvent(StreamId stream, const v1::AttachRequest& message) {
  switch (message.body_case()) {
    case v1::AttachRequest::kHello:
      return FromHello(stream, message.hello());
    case v1::AttachRequest::kReady:
      return WorkerReady{stream, Step(message.ready().next_step()), message.ready().device(),
                         message.ready().data_sha256()};
    case v1::AttachRequest::kProgress:
      return FromProgress(stream, message.progress());
    case v1::AttachRequest::kStep:
      return FromStep(stream, message.step());
    case v1::AttachRequest::kEvaluation:
      return FromEvaluation(stream, message.evaluation());
    case v1::AttachRequest::kCheckpoint:
      return FromCheckpoint(stream, message.checkpoint());
    case v1::AttachRequest::kAck:
      return DirectiveAcked{stream, message.ack().number(), Step(message.ack().next_step())};
    case v1::AttachRequest::kFinished:
      return FromFinished(stream, message.finished());
    case v1::AttachRequest::kFound:
      return WorkerFoundState{stream, Step(message.found().step())};
    case v1::AttachRequest::kPractised:
      return WorkerPractised{stream, Step(message.practised().step()), message.practised().kept(),
                             PracticeSeconds(message.practised().accounts()),
                             message.practised().error()};
    case v1::AttachRequest::BODY_NOT_SET:
      return std::nullopt;
  }
  return std::nullopt;
}

absl::Status CheckExternalSpec(v1::AttachRequest& message) {
  if (!message.has_hello() || !message.hello().has_external_spec()) return absl::OkStatus();
  v1::JobSpec& spec = *message.mutable_hello()->mutable_external_spec();
  FillJobDefaults(spec);
  const absl::Status valid = ValidateJobSpec(spec);
  if (valid.ok()) return valid;
  return absl::FailedPreconditionError(absl::StrCat("the job cannot run: ", valid.message()));
}

void NoteClock(Event& event, absl::Time wall) {
  const auto ahead = [&](const v1::NodeReport& report) {
    if (report.unix_seconds() <= 0) return absl::ZeroDuration();
    return absl::UnixEpoch() + absl::Seconds(report.unix_seconds()) - wall;
  };
  if (auto* attached = std::get_if<AgentAttached>(&event)) {
    attached->clock_ahead = ahead(attached->report);
  } else if (auto* reported = std::get_if<AgentReported>(&event)) {
    reported->clock_ahead = ahead(reported->report);
  } else if (auto* tick = std::get_if<Tick>(&event)) {
    tick->wall = wall;
  }
}

Event CallEvent(RequestId id, const OperatorRequest& request) {
  return std::visit([&](const auto& one) { return FromCall(id, one); }, request);
}

v1::AttachResponse WelcomeMessage(const Welcome& effect, const JobRecord& record,
                                  int64_t memory_limit_bytes, const std::string& state_dir) {
  v1::AttachResponse response;
  v1::Welcome& welcome = *response.mutable_welcome();
  welcome.set_job_id(effect.worker.job.text());
  welcome.set_generation(effect.worker.generation.value());
  *welcome.mutable_spec() = record.spec;
  welcome.set_checkpoint_directory(CheckpointDirectory(record, state_dir));
  *welcome.mutable_directive() = ToProto(effect.directive);
  welcome.set_least_step(effect.least.value());
  welcome.set_least_held_by(effect.least_held_by);
  welcome.set_has_got_on(effect.has_got_on);
  welcome.set_lease_seconds(absl::ToDoubleSeconds(Lease(record)));
  welcome.set_memory_limit_bytes(memory_limit_bytes);
  if (effect.keep_warm) welcome.set_warm_folder(WarmFolder(state_dir));
  welcome.set_history(record.history);
  return response;
}

std::string WarmFolder(const std::string& state_dir) { return state_dir + "/warm"; }

std::string CheckpointDirectory(const JobRecord& record, const std::string& state_dir) {
  if (!record.spec.checkpoint().directory().empty()) return record.spec.checkpoint().directory();
  return absl::StrCat(state_dir, "/jobs/", record.id.text(), "/checkpoints");
}

}  // namespace espalier
