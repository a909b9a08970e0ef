#include "coordinator/service/view_publisher.h"

#include <algorithm>
#include <utility>

#include "coordinator/core/facts.h"
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

void FillRanks(const Job& job, const JobNotes& notes, const ViewMoment& moment, JobView& view) {
  for (size_t i = 0; i < job.world.ranks.size(); ++i) {
    FillRank(job, i, notes, *view.status.add_ranks());
    view.progress_at.push_back(moment.monotonic - (moment.now - job.world.ranks[i].progressed_at));
  }
}

void FillProgress(const Job& job, v1::JobStatus& status) {
  const JobRecord& record = job.record;
  Step committed = record.step;
  if (const std::optional<StepFigures> last = job.figures.last()) {
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
  const Step total(record.spec.train().steps());
  if (const std::optional<double> eta = job.figures.EtaSeconds(committed, total)) {
    status.set_eta_seconds(*eta);
  }
}

void FillResults(const JobRecord& record, v1::JobStatus& status) {
  if (record.evaluation) {
    status.set_validation_loss(record.evaluation->loss);
    status.set_validation_step(record.evaluation->step.value());
  }
  if (record.checkpoint) *status.mutable_last_checkpoint() = ToProto(*record.checkpoint);
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
  FillRanks(job, notes, moment, *view);
  view->spec = std::make_shared<v1::JobSpec>(record.spec);
  if (record.checkpoint) {
    view->checkpoint_at = moment.monotonic - (moment.now - record.checkpoint->at);
  }
  view->restarts_by_cause = notes.restarts_by_cause;
  view->checkpoint_failures = record.checkpoint_failures;
  view->tallies = notes.tallies;
  for (const NodeName& node : record.nodes) view->nodes.push_back(node.text());
  if (IsFinal(record.state)) view->final_at = notes.final_at.value_or(moment.monotonic);
  view->revision = notes.revision;
  return view;
}

std::vector<v1::NodeStatus> MakeNodeViews(const ClusterState& state,
                                          const v1::ClusterSpec& cluster) {
  std::vector<v1::NodeStatus> views;
  for (const v1::NodeSpec& spec : cluster.nodes()) {
    v1::NodeStatus& node = views.emplace_back();
    node.set_name(spec.name());
    node.set_address(spec.address());
    node.set_profile(spec.profile());
    node.set_device(spec.device());
    node.set_memory_limit_bytes(spec.memory_limit_bytes());
    const Node* known = state.nodes.Find(NodeName(spec.name()));
    if (known == nullptr) continue;
    node.set_job_id(known->holder.text());
    if (known->record.set_aside_until <= state.now) continue;
    node.set_set_aside_reason(known->record.set_aside_reason);
    node.set_set_aside_until_ms(ToUnixMs(known->record.set_aside_until));
  }
  return views;
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
    JobNotes& notes = notes_.of(id);
    ++notes.revision;
    view_.jobs[id] = MakeJobView(job->second, notes, state_dir_, moment);
  }
  view_.nodes = MakeNodeViews(publication.state, cluster_);
  view_.stats = publication.stats;
  board_.Publish(std::make_shared<View>(view_));
}

void ViewPublisher::Stalled(const LoopStats& stats) {
  view_.stats = stats;
  board_.Publish(std::make_shared<View>(view_));
}

}  // namespace espalier
