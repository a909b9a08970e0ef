#include "coordinator/journal/record.h"

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "espalier/v1/journal.pb.h"

namespace espalier {
namespace {

int64_t Us(absl::Time time) { return absl::ToUnixMicros(time); }
absl::Time At(int64_t us) { return absl::FromUnixMicros(us); }

absl::Status Unknown(absl::string_view what, absl::string_view name) {
  return absl::DataLossError(absl::StrCat(
      "the journal holds ", what, " ", name,
      " that this espalierd cannot read; was it written by a newer one, or is the file damaged?"));
}

void EncodeGeneration(const JobRecord& record, v1::JournalJob& row) {
  row.set_generation(record.generation.value());
  for (const NodeName& node : record.nodes) row.add_nodes(node.text());
  row.set_external_id(record.external_id);
  row.set_processes(static_cast<int32_t>(record.processes));
  *row.mutable_directive() = ToProto(record.directive);
  row.set_run_state_number(record.run_state_number);
  row.set_last_plan(record.last_plan);
  row.set_checkpoint_wanted(record.checkpoint_wanted);
  row.set_called_off(record.called_off);
}

void EncodeFaults(const JobRecord& record, v1::JournalJob& row) {
  for (absl::Time fault : record.faults) row.add_faults_us(Us(fault));
  row.set_restarts(record.restarts);
  row.set_retry_at_us(Us(record.retry_at));
  row.set_fault_step(record.fault_step.value());
  row.set_kept(record.kept);
  row.set_fault_kept(record.fault_kept);
  row.set_unseen_ends(record.unseen_ends);
  row.set_unexplained(record.unexplained);
  for (const NodeName& node : record.unheard) row.add_unheard(node.text());
  if (!record.failure) return;
  v1::JournalFailure& failure = *row.mutable_failure();
  failure.set_code(static_cast<int32_t>(record.failure->code));
  failure.set_step(record.failure->step.value());
  failure.set_generation(record.failure->generation.value());
  for (const NodeName& node : record.failure->nodes) failure.add_nodes(node.text());
}

void DecodeFaults(const v1::JournalJob& row, JobRecord& record) {
  for (int64_t fault : row.faults_us()) record.faults.push_back(At(fault));
  record.restarts = row.restarts();
  record.retry_at = At(row.retry_at_us());
  record.fault_step = Step(row.fault_step());
  record.kept = row.kept();
  record.fault_kept = row.fault_kept();
  record.unseen_ends = row.unseen_ends();
  record.unexplained = row.unexplained();
  for (const std::string& node : row.unheard()) record.unheard.emplace_back(node);
  if (!row.has_failure()) return;
  record.failure = FailureRecord{.code = static_cast<absl::StatusCode>(row.failure().code()),
                                 .step = Step(row.failure().step()),
                                 .generation = Generation(row.failure().generation())};
  for (const std::string& node : row.failure().nodes()) record.failure->nodes.emplace_back(node);
}

void DecodeGeneration(const v1::JournalJob& row, JobRecord& record) {
  record.generation = Generation(row.generation());
  for (const std::string& node : row.nodes()) record.nodes.emplace_back(node);
  record.external_id = row.external_id();
  record.processes = static_cast<Processes>(row.processes());
  record.directive = FromProto(row.directive());
  record.run_state_number = row.run_state_number();
  record.last_plan = row.last_plan();
  record.checkpoint_wanted = row.checkpoint_wanted();
  record.called_off = row.called_off();
}

CheckpointRecord FromProto(const v1::CheckpointReport& from, int64_t at_us) {
  return {Step(from.step()), from.path(), from.bytes(), from.seconds(), from.error(), At(at_us)};
}

void EncodeResults(const JobRecord& record, v1::JournalJob& row) {
  row.set_step(record.step.value());
  row.set_skipped_steps(record.skipped_steps);
  if (record.last_step) {
    v1::StepReport& last = *row.mutable_last_step();
    last.set_step(record.last_step->step.value());
    last.set_loss(record.last_step->loss);
    last.set_gradient_norm(record.last_step->gradient_norm);
    last.set_learning_rate(record.last_step->learning_rate);
  }
  if (record.evaluation) {
    v1::EvaluationReport& evaluation = *row.mutable_evaluation();
    evaluation.set_step(record.evaluation->step.value());
    evaluation.set_loss(record.evaluation->loss);
    evaluation.set_without_gain(record.evaluation->without_gain);
    evaluation.set_reductions(record.evaluation->reductions);
    evaluation.set_rate_factor(record.evaluation->rate_factor);
  }
  if (record.checkpoint) {
    *row.mutable_checkpoint() = ToProto(*record.checkpoint);
    row.set_checkpoint_at_us(Us(record.checkpoint->at));
  }
  if (record.checkpoint_failure) {
    *row.mutable_checkpoint_failure() = ToProto(*record.checkpoint_failure);
    row.set_checkpoint_failure_at_us(Us(record.checkpoint_failure->at));
  }
  row.set_checkpoint_failures(record.checkpoint_failures);
  for (const HolderRecord& holder : record.holders) {
    v1::JournalHolder& one = *row.add_holders();
    one.set_node(holder.node.text());
    one.set_step(holder.step.value());
    one.set_passed_over(holder.passed_over.value());
  }
}

void EncodeTraining(const JobRecord& record, v1::JournalJob& row) {
  for (const NodeName& node : record.trained_on) row.add_trained_on(node.text());
  for (const NodeName& node : record.practised_on) row.add_practised_on(node.text());
  row.set_history(record.history);
  row.set_rate_factor(record.rate_factor);
  row.mutable_warnings()->Assign(record.warnings.begin(), record.warnings.end());
  for (const SpeedRecord& speed : record.speeds) {
    const SpeedSums& sums = speed.speed.sums();
    v1::JournalSpeed& one = *row.add_speeds();
    one.set_node(speed.node.text());
    one.set_weight(sums.weight);
    one.set_n(sums.n);
    one.set_nn(sums.nn);
    one.set_t(sums.t);
    one.set_nt(sums.nt);
    one.set_deviation(sums.deviation);
    one.set_measurements(sums.measurements);
  }
}

void DecodeTraining(const v1::JournalJob& row, JobRecord& record) {
  for (const std::string& node : row.trained_on()) record.trained_on.push_back(NodeName(node));
  for (const std::string& node : row.practised_on()) record.practised_on.emplace_back(node);
  record.history = row.history();
  record.rate_factor = 1;
  if (row.has_evaluation()) record.rate_factor = row.evaluation().rate_factor();
  if (row.has_rate_factor()) record.rate_factor = row.rate_factor();
  record.warnings.assign(row.warnings().begin(), row.warnings().end());
  for (const v1::JournalSpeed& one : row.speeds()) {
    const SpeedSums sums{one.weight(), one.n(),         one.nn(),          one.t(),
                         one.nt(),     one.deviation(), one.measurements()};
    record.speeds.push_back({NodeName(one.node()), SpeedModel(sums)});
  }
}

void DecodeResults(const v1::JournalJob& row, JobRecord& record) {
  record.step = Step(row.step());
  record.skipped_steps = row.skipped_steps();
  if (row.has_last_step()) {
    const v1::StepReport& last = row.last_step();
    record.last_step = StepFigures{.step = Step(last.step()),
                                   .loss = last.loss(),
                                   .gradient_norm = last.gradient_norm(),
                                   .learning_rate = last.learning_rate()};
  }
  if (row.has_evaluation()) {
    record.evaluation = EvaluationRecord{.step = Step(row.evaluation().step()),
                                         .loss = row.evaluation().loss(),
                                         .without_gain = row.evaluation().without_gain(),
                                         .reductions = row.evaluation().reductions(),
                                         .rate_factor = row.evaluation().rate_factor()};
  }
  if (row.has_checkpoint()) {
    record.checkpoint = FromProto(row.checkpoint(), row.checkpoint_at_us());
  }
  if (row.has_checkpoint_failure()) {
    record.checkpoint_failure = FromProto(row.checkpoint_failure(), row.checkpoint_failure_at_us());
  }
  record.checkpoint_failures = row.checkpoint_failures();
  for (const v1::JournalHolder& holder : row.holders()) {
    record.holders.push_back(
        {NodeName(holder.node()), Step(holder.step()), Step(holder.passed_over())});
  }
}

bool Known(const v1::JournalJob& row) {
  return row.state() >= static_cast<int32_t>(JobState::kQueued) &&
         row.state() <= static_cast<int32_t>(JobState::kCancelled) && row.wish() >= 0 &&
         row.wish() <= static_cast<int32_t>(DesiredState::kCancel) && row.verdict() >= 0 &&
         row.verdict() <= static_cast<int32_t>(Verdict::kFail) && row.processes() >= 0 &&
         row.processes() <= static_cast<int32_t>(Processes::kEnding);
}

void EncodeInvitation(const Invitation& invitation, v1::JournalInvitation& row) {
  row.set_token_sha256(invitation.token_sha256);
  row.set_expires_at_us(Us(invitation.expires_at));
  if (invitation.used_at) row.set_used_at_us(Us(*invitation.used_at));
  *row.mutable_spec() = invitation.spec;
}

Invitation DecodeInvitation(const v1::JournalInvitation& row) {
  Invitation invitation;
  invitation.token_sha256 = row.token_sha256();
  invitation.expires_at = At(row.expires_at_us());
  if (row.has_used_at_us()) invitation.used_at = At(row.used_at_us());
  invitation.spec = row.spec();
  return invitation;
}

}  // namespace

v1::ShardPlan ToProto(const ShardPlan& plan) {
  v1::ShardPlan result;
  result.set_number(plan.number);
  result.set_from_step(plan.from_step.value());
  for (int32_t sequences : plan.sequences) result.add_sequences(sequences);
  result.set_reason(plan.reason);
  result.set_decided_ms(plan.decided_ms);
  return result;
}

v1::Directive ToProto(const Directive& directive) {
  v1::Directive result;
  result.set_number(directive.number);
  result.set_run_state(static_cast<v1::RunState>(directive.run_state));
  result.set_checkpoint_request(directive.checkpoint_request);
  result.set_checkpoint_before_stop(directive.checkpoint_before_stop);
  *result.mutable_plan() = ToProto(directive.plan);
  for (const RankLimit& limit : directive.limits) {
    v1::RankLimit& row = *result.add_limits();
    row.set_part(limit.part);
    row.set_largest_share(limit.largest_share);
  }
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
                 plan.reason(),
                 plan.decided_ms()};
  for (const v1::RankLimit& row : directive.limits()) {
    result.limits.push_back({row.part(), row.largest_share()});
  }
  return result;
}

v1::CheckpointReport ToProto(const CheckpointRecord& checkpoint) {
  v1::CheckpointReport result;
  result.set_step(checkpoint.step.value());
  result.set_path(checkpoint.path);
  result.set_bytes(checkpoint.bytes);
  result.set_seconds(checkpoint.seconds);
  result.set_error(checkpoint.error);
  return result;
}

std::string EncodeJob(const JobRecord& record) {
  v1::JournalJob row;
  row.set_id(record.id.text());
  row.set_number(record.number);
  row.set_request_id(record.request_id);
  *row.mutable_spec() = record.spec;
  row.set_yaml(record.yaml);
  row.set_submitted_at_us(Us(record.submitted_at));
  row.set_state(static_cast<int32_t>(record.state));
  row.set_reason(record.reason);
  row.set_state_since_us(Us(record.state_since));
  row.set_wish(static_cast<int32_t>(record.desired));
  row.set_verdict(static_cast<int32_t>(record.verdict));
  row.set_verdict_reason(record.verdict_reason);
  row.set_last_event(record.last_event);
  EncodeGeneration(record, row);
  EncodeFaults(record, row);
  EncodeResults(record, row);
  EncodeTraining(record, row);
  return row.SerializeAsString();
}

absl::StatusOr<JobRecord> DecodeJob(absl::string_view bytes) {
  v1::JournalJob row;
  if (!row.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())) || row.id().empty() ||
      !Known(row)) {
    return Unknown("a job", row.id());
  }
  JobRecord record;
  record.id = JobId(row.id());
  record.number = row.number();
  record.request_id = row.request_id();
  record.spec = row.spec();
  record.yaml = row.yaml();
  record.submitted_at = At(row.submitted_at_us());
  record.state = static_cast<JobState>(row.state());
  record.reason = row.reason();
  record.state_since = At(row.state_since_us());
  record.desired = static_cast<DesiredState>(row.wish());
  record.verdict = static_cast<Verdict>(row.verdict());
  record.verdict_reason = row.verdict_reason();
  record.last_event = row.last_event();
  DecodeGeneration(row, record);
  DecodeFaults(row, record);
  DecodeResults(row, record);
  DecodeTraining(row, record);
  return record;
}

namespace {

void EncodeIllness(const Illness& illness, v1::JournalIllness& row) {
  row.set_ailment(static_cast<int32_t>(illness.ailment));
  row.set_why(illness.why);
  row.set_since_us(Us(illness.since));
  for (const absl::Time time : illness.fell_ill) row.add_fell_ill_us(Us(time));
}

// One that a newer espalierd knows is forgotten: the next report says what ails it.
Illness DecodeIllness(const v1::JournalIllness& row) {
  Illness illness;
  if (row.ailment() >= 0 && row.ailment() <= static_cast<int32_t>(Ailment::kHours)) {
    illness.ailment = static_cast<Ailment>(row.ailment());
    illness.why = row.why();
  }
  illness.since = At(row.since_us());
  for (const int64_t time : row.fell_ill_us()) illness.fell_ill.push_back(At(time));
  return illness;
}

}  // namespace

std::string EncodeNode(const NodeRecord& node) {
  v1::JournalNode row;
  row.set_name(node.name.text());
  for (absl::Time fault : node.faults) row.add_faults_us(Us(fault));
  row.set_set_asides(node.set_asides);
  row.set_set_aside_reason(node.set_aside_reason);
  row.set_set_aside_until_us(Us(node.set_aside_until));
  if (node.drained) row.set_drained(*node.drained);
  row.set_has_agent(node.has_agent);
  row.set_certificate(node.certificate);
  row.mutable_serials()->Assign(node.serials.begin(), node.serials.end());
  row.mutable_revoked()->Assign(node.revoked.begin(), node.revoked.end());
  if (node.invitation) EncodeInvitation(*node.invitation, *row.mutable_invitation());
  if (node.joined) *row.mutable_joined() = *node.joined;
  row.set_joined_as(node.joined_as);
  EncodeIllness(node.illness, *row.mutable_illness());
  return row.SerializeAsString();
}

absl::StatusOr<NodeRecord> DecodeNode(absl::string_view bytes) {
  v1::JournalNode row;
  if (!row.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())) || row.name().empty()) {
    return Unknown("a node", row.name());
  }
  NodeRecord node;
  node.name = NodeName(row.name());
  for (int64_t fault : row.faults_us()) node.faults.push_back(At(fault));
  node.set_asides = row.set_asides();
  node.set_aside_reason = row.set_aside_reason();
  node.set_aside_until = At(row.set_aside_until_us());
  if (row.has_drained()) node.drained = row.drained();
  node.has_agent = row.has_agent();
  node.certificate = row.certificate();
  node.serials.assign(row.serials().begin(), row.serials().end());
  node.revoked.assign(row.revoked().begin(), row.revoked().end());
  if (row.has_invitation()) node.invitation = DecodeInvitation(row.invitation());
  if (row.has_joined()) node.joined = row.joined();
  node.joined_as = row.joined_as();
  if (row.has_illness()) node.illness = DecodeIllness(row.illness());
  return node;
}

}  // namespace espalier
