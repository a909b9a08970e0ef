#include "coordinator/service/view_publisher.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "coordinator/core/facts.h"
#include "coordinator/core/holders.h"
#include "coordinator/core/usable.h"
#include "coordinator/journal/record.h"
#include "coordinator/loop/messages.h"

namespace espalier {
namespace {

void FillRank(const Job& job, size_t index, const JobNotes& notes, v1::RankStatus& status) {
  const TrackedRank& rank = job.world.ranks[index];
  status.set_rank(static_cast<int32_t>(index));
  status.set_node(rank.node.text());
  status.set_attached(rank.stream.has_value());
  status.set_phase(static_cast<v1::Phase>(rank.counters.phase));
  status.set_step(rank.counters.step.value());
  const std::vector<int32_t>& shares = job.record.directive.plan.sequences;
  if (index < shares.size()) status.set_shard(shares[index]);
  status.set_memory_bytes(rank.memory_bytes);
  status.set_memory_peak_bytes(rank.memory_peak_bytes);
  status.set_device(rank.device);
  status.set_pid(rank.pid);
  if (index < notes.last_steps.size() && notes.last_steps[index]) {
    *status.mutable_last_step() = *notes.last_steps[index];
  }
}

// What `espalier job --plan` explains the plan with.
void FillSpeeds(const Job& job, v1::JobStatus& status) {
  const std::vector<int32_t>& shares = job.record.directive.plan.sequences;
  double sum = 0;
  double latest = 0;
  bool known = !job.world.ranks.empty();
  for (size_t i = 0; i < job.world.ranks.size() && i < shares.size(); ++i) {
    const TrackedRank& rank = job.world.ranks[i];
    const SpeedModel model = SpeedOf(job.record, rank.node);
    known = known && model.measured();
    if (!model.measured()) continue;
    const StepTime time = model.Time();
    v1::RankSpeed& speed = *status.mutable_ranks(static_cast<int>(i))->mutable_speed();
    speed.set_constant_seconds(time.constant);
    speed.set_seconds_per_sequence(time.per_sequence);
    speed.set_predicted_seconds(time.Seconds(shares[i]));
    if (rank.last_step) speed.set_measured_seconds(rank.last_step->own_seconds);
    speed.set_measurements(model.sums().measurements);
    sum += speed.predicted_seconds();
    latest = std::max(latest, speed.predicted_seconds());
  }
  const auto ranks = static_cast<double>(job.world.ranks.size());
  if (known) status.set_imbalance(latest * ranks / sum - 1);
}

void FillRanks(const Job& job, const JobNotes& notes, const ViewMoment& moment, JobView& view) {
  for (size_t i = 0; i < job.world.ranks.size(); ++i) {
    FillRank(job, i, notes, *view.status.add_ranks());
    view.progress_at.push_back(moment.monotonic - (moment.now - job.world.ranks[i].progressed_at));
  }
  FillSpeeds(job, view.status);
}

void FillProgress(const Job& job, v1::JobStatus& status) {
  const JobRecord& record = job.record;
  Step committed = record.step;
  if (const std::optional<StepFigures>& last = record.last_step) {
    committed = std::max(committed, last->step.next());
    status.set_loss(last->loss);
    status.set_gradient_norm(last->gradient_norm);
    status.set_learning_rate(last->learning_rate);
  }
  status.set_step(committed.value());
  status.set_total_steps(record.spec.train().steps());
  status.set_skipped_steps(record.skipped_steps);
  if (record.state != JobState::kRunning) return;
  status.set_tokens_per_second(job.figures.tokens_per_second());
  for (const TrainingHealth::Rule rule : TrainingHealth::kAll) {
    if (job.health.holds(rule)) {
      status.add_warnings(std::string(TrainingHealth::Name(rule)));
    }
  }
  const Step total(record.spec.train().steps());
  if (const std::optional<double> eta = job.figures.EtaSeconds(committed, total)) {
    status.set_eta_seconds(*eta);
  }
}

void FillResults(const JobRecord& record, v1::JobStatus& status) {
  if (record.evaluation) {
    status.set_validation_loss(record.evaluation->loss);
    status.set_validation_step(record.evaluation->step.value());
    status.set_evaluations_without_gain(record.evaluation->without_gain);
    status.set_learning_rate_reductions(record.evaluation->reductions);
  }
  if (record.checkpoint) *status.mutable_last_checkpoint() = ToProto(*record.checkpoint);
  if (NewestPublished(record) > Step(0)) {
    status.set_state_holders(NodeList(HoldersOfPublished(record)));
  }
}

}  // namespace

std::shared_ptr<const JobView> MakeJobView(const Job& job, const JobNotes& notes,
                                           const std::string& state_dir, const ViewMoment& moment) {
  const JobRecord& record = job.record;
  auto view = std::make_shared<JobView>();
  v1::JobStatus& status = view->status;
  status.set_id(record.id.text());
  status.set_name(record.spec.name());
  status.set_state(static_cast<v1::JobState>(record.state));
  status.set_reason(record.reason);
  status.set_generation(record.generation.value());
  status.set_submitted_ms(ToUnixMs(record.submitted_at));
  status.set_state_since_ms(ToUnixMs(record.state_since));
  status.set_restarts(record.restarts);
  status.set_priority(record.spec.priority());
  status.set_checkpoint_directory(CheckpointDirectory(record, state_dir));
  *status.mutable_plan() = ToProto(record.directive.plan);
  FillProgress(job, status);
  FillResults(record, status);
  *status.mutable_figures() = notes.figures;
  *status.mutable_evaluation_figures() = notes.evaluation_figures;
  FillRanks(job, notes, moment, *view);
  view->spec = std::make_shared<v1::JobSpec>(record.spec);
  if (record.checkpoint) {
    view->checkpoint_at = moment.monotonic - (moment.now - record.checkpoint->at);
  }
  view->restarts_by_cause = notes.restarts_by_cause;
  view->interruption = job.interruption;
  view->checkpoint_failures = record.checkpoint_failures;
  view->tallies = notes.tallies;
  for (const NodeName& node : record.nodes) view->nodes.push_back(node.text());
  if (IsFinal(record.state)) view->final_at = notes.final_at.value_or(moment.monotonic);
  view->revision = notes.revision;
  return view;
}

std::shared_ptr<const v1::NodeStatus> MakeNodeView(const ClusterState& state, const Node& node,
                                                   const v1::NodeSpec& spec) {
  auto view = std::make_shared<v1::NodeStatus>();
  view->set_name(spec.name());
  view->set_address(spec.address());
  view->set_profile(spec.profile());
  view->set_device(spec.device());
  view->set_memory_limit_bytes(spec.memory_limit_bytes());
  view->set_job_id(node.holder.text());
  view->set_unusable_reason(Describe(state, node, {NodeObstacle(state, node), {}}));
  view->set_faults(static_cast<int32_t>(node.record.faults.size()));
  view->set_certificate(node.record.certificate);
  if (IsSetAside(node.record)) {
    view->set_set_aside_reason(node.record.set_aside_reason);
    view->set_set_aside_until_ms(ToUnixMs(node.record.set_aside_until + state.wall_ahead));
  }
  view->set_drained(node.record.drained.has_value());
  if (node.agent.state == AgentState::kAttached) view->set_spared_reason(node.agent.share.why());
  const AgentSession& agent = node.agent;
  view->set_agent(static_cast<v1::AgentState>(agent.state));
  const auto if_ever = [&](absl::Time at) {
    return at == absl::UnixEpoch() ? 0 : ToUnixMs(at + state.wall_ahead);
  };
  view->set_agent_since_ms(if_ever(agent.state_since));
  view->set_agent_heard_ms(if_ever(agent.heard_at));
  if (agent.report) *view->mutable_report() = *agent.report;
  view->set_clock_ahead_seconds(absl::ToDoubleSeconds(agent.clock_ahead));
  return view;
}

void ViewPublisher::Heard(const WorkerId& worker, const v1::AttachRequest& message,
                          absl::Duration now) {
  notes_.Heard(worker, message, now);
}

void ViewPublisher::Attached(const WorkerId& worker, absl::Duration now) {
  notes_.Attached(worker, now);
}

void ViewPublisher::Moved(const JobId& job, JobState from, JobState to, const Event& event,
                          absl::Duration now) {
  notes_.Moved(job, from, to, event, now);
}

void ViewPublisher::Publish(const Publication& publication) {
  const ViewMoment moment = {publication.state.now, publication.monotonic};
  for (const JobId& id : publication.changed) {
    const auto job = publication.state.jobs.find(id);
    if (job == publication.state.jobs.end()) {
      view_.jobs.erase(id);
      notes_.Forget(id);
      continue;
    }
    notes_.Narrow(id, job->second.record.nodes.size(), publication.monotonic);
    JobNotes& notes = notes_.of(id);
    ++notes.revision;
    view_.jobs[id] = MakeJobView(job->second, notes, state_dir_, moment);
  }
  PublishNodes(publication.state);
  view_.stats = publication.stats;
  board_.Publish(std::make_shared<View>(view_));
}

// Anew only those that have changed.
void ViewPublisher::PublishNodes(const ClusterState& state) {
  view_.versions = state.versions;
  if (view_.revoked->size() != state.revoked.size()) {  // it only grows
    view_.revoked = std::make_shared<const std::set<std::string>>(state.revoked);
  }
  view_.nodes.resize(state.nodes.size());
  node_revisions_.resize(view_.nodes.size(), -1);
  size_t i = 0;
  for (const Node& node : state.nodes) {
    std::shared_ptr<const v1::NodeStatus>& shown = view_.nodes[i];
    const bool same = shown != nullptr && shown->name() == node.record.name.text() &&
                      node_revisions_[i] == node.revision;
    if (!same) shown = MakeNodeView(state, node, SpecOf(node, i));
    node_revisions_[i++] = node.revision;
  }
}

const v1::NodeSpec& ViewPublisher::SpecOf(const Node& node, size_t index) const {
  if (node.record.joined) return *node.record.joined;
  ESPALIER_CHECK(index < static_cast<size_t>(cluster_.nodes_size()),
                 "a node that has not joined is one of the cluster file");
  return cluster_.nodes(static_cast<int>(index));
}

void ViewPublisher::Stalled(const LoopStats& stats) {
  view_.stats = stats;
  board_.Publish(std::make_shared<View>(view_));
}

}  // namespace espalier
