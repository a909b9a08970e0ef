#include "coordinator/runtime/translate.h"

#include <utility>

namespace espalier {
namespace {

Event FromHello(LinkId link, const v1::Hello& hello) {
  WorkerAttached event;
  event.link = link;
  event.worker = {JobId(hello.job_id()), Generation(hello.generation()), Rank(hello.rank())};
  event.world_size = hello.world_size();
  event.node = NodeName(hello.node());
  event.pid = hello.pid();
  if (hello.has_external_spec()) event.external_spec = hello.external_spec();
  event.external_id = hello.external_id();
  return event;
}

// The enums of the core have the numbers of the protocol, less its "unspecified".
Phase ToPhase(v1::Phase phase) {
  const bool known = v1::Phase_IsValid(phase) && phase != v1::PHASE_UNSPECIFIED;
  return known ? static_cast<Phase>(phase) : Phase::kStarting;
}

Event FromProgress(LinkId link, const v1::Progress& progress) {
  WorkerProgress event;
  event.link = link;
  event.counters = {Step(progress.step()), ToPhase(progress.phase()), progress.collective(),
                    progress.work()};
  event.memory_bytes = progress.memory_bytes();
  event.memory_peak_bytes = progress.memory_peak_bytes();
  return event;
}

Event FromStep(LinkId link, const v1::StepReport& step) {
  return WorkerStepReported{link,
                            {.step = Step(step.step()),
                             .loss = step.loss(),
                             .tokens = step.tokens(),
                             .gradient_norm = step.gradient_norm(),
                             .learning_rate = step.learning_rate(),
                             .skipped = step.skipped(),
                             .shard = step.shard(),
                             .step_seconds = step.step_seconds()}};
}

std::optional<Event> FromFinished(LinkId link, const v1::Finished& finished) {
  const bool known =
      v1::Outcome_IsValid(finished.outcome()) && finished.outcome() != v1::OUTCOME_UNSPECIFIED;
  if (!known) return std::nullopt;
  return WorkerFinished{link, static_cast<Outcome>(finished.outcome()), finished.reason(),
                        Step(finished.next_step())};
}

Event FromCheckpoint(LinkId link, const v1::CheckpointReport& report) {
  WorkerCheckpointed event;
  event.link = link;
  event.checkpoint.step = Step(report.step());
  event.checkpoint.path = report.path();
  event.checkpoint.bytes = report.bytes();
  event.checkpoint.seconds = report.seconds();
  event.checkpoint.error = report.error();
  return event;
}

}  // namespace

v1::ShardPlan ToProto(const ShardPlan& plan) {
  v1::ShardPlan result;
  result.set_number(plan.number);
  result.set_from_step(plan.from_step.value());
  for (int32_t sequences : plan.sequences) result.add_sequences(sequences);
  result.set_reason(plan.reason);
  return result;
}

v1::Directive ToProto(const Directive& directive) {
  v1::Directive result;
  result.set_number(directive.number);
  result.set_run_state(static_cast<v1::RunState>(directive.run_state));
  result.set_checkpoint_request(directive.checkpoint_request);
  result.set_checkpoint_before_stop(directive.checkpoint_before_stop);
  *result.mutable_plan() = ToProto(directive.plan);
  return result;
}

Directive FromProto(const v1::Directive& directive) {
  Directive result;
  result.number = directive.number();
  result.run_state = static_cast<RunState>(directive.run_state());
  result.checkpoint_request = directive.checkpoint_request();
  result.checkpoint_before_stop = directive.checkpoint_before_stop();
  const v1::ShardPlan& plan = directive.plan();
  result.plan = {plan.number(),
                 Step(plan.from_step()),
                 {plan.sequences().begin(), plan.sequences().end()},
                 plan.reason()};
  return result;
}

v1::CheckpointReport ToProto(const Checkpoint& checkpoint) {
  v1::CheckpointReport result;
  result.set_step(checkpoint.step.value());
  result.set_path(checkpoint.path);
  result.set_bytes(checkpoint.bytes);
  result.set_seconds(checkpoint.seconds);
  result.set_error(checkpoint.error);
  return result;
}

std::optional<Event> WorkerEvent(LinkId link, const v1::AttachRequest& message) {
  switch (message.body_case()) {
    case v1::AttachRequest::kHello:
      return FromHello(link, message.hello());
    case v1::AttachRequest::kReady:
      return WorkerReady{link, Step(message.ready().next_step()), message.ready().device()};
    case v1::AttachRequest::kProgress:
      return FromProgress(link, message.progress());
    case v1::AttachRequest::kStep:
      return FromStep(link, message.step());
    case v1::AttachRequest::kEvaluation:
      return WorkerEvaluated{link,
                             {Step(message.evaluation().step()), message.evaluation().loss()}};
    case v1::AttachRequest::kCheckpoint:
      return FromCheckpoint(link, message.checkpoint());
    case v1::AttachRequest::kAck:
      return DirectiveAcked{link, message.ack().number(), Step(message.ack().next_step())};
    case v1::AttachRequest::kFinished:
      return FromFinished(link, message.finished());
    case v1::AttachRequest::BODY_NOT_SET:
      return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace espalier
