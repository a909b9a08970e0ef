#include "coordinator/service/metrics.h"

#include <netdb.h>
#include <prometheus/metric_family.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/base/address.h"
#include "common/observe/metric_names.h"
#include "common/observe/task_figures.h"
#include "coordinator/loop/outlets.h"
#include "coordinator/planner/training_health.h"

namespace espalier {
namespace {

using MetricLabels = std::vector<std::pair<std::string, std::string>>;

// Collects samples into families, in the order of their first sample.
class MetricBuilder {
 public:
  // A gauge or counter sample, as the name says.
  void Add(const MetricName& name, const MetricLabels& labels, double value);
  void AddHistogram(const MetricName& name, const Latency& latency);
  std::vector<prometheus::MetricFamily> Take() && { return std::move(families_); }

 private:
  prometheus::MetricFamily& Family(const MetricName& name);
  std::vector<prometheus::MetricFamily> families_;
};

prometheus::MetricType TypeOf(MetricKind kind) {
  switch (kind) {
    case MetricKind::kGauge:
      return prometheus::MetricType::Gauge;
    case MetricKind::kCounter:
      return prometheus::MetricType::Counter;
    case MetricKind::kHistogram:
      return prometheus::MetricType::Histogram;
  }
  return prometheus::MetricType::Untyped;
}

prometheus::MetricFamily& MetricBuilder::Family(const MetricName& name) {
  const auto found = std::find_if(families_.begin(), families_.end(),
                                  [&](const auto& family) { return family.name == name.name; });
  if (found != families_.end()) return *found;
  prometheus::MetricFamily family;
  family.name = std::string(name.name);
  family.help = std::string(name.help);
  family.type = TypeOf(name.kind);
  families_.push_back(std::move(family));
  return families_.back();
}

void MetricBuilder::Add(const MetricName& name, const MetricLabels& labels, double value) {
  prometheus::ClientMetric metric;
  for (const auto& [key, text] : labels) {
    prometheus::ClientMetric::Label label;
    label.name = key;
    label.value = text;
    metric.label.push_back(std::move(label));
  }
  if (name.kind == MetricKind::kCounter) {
    metric.counter.value = value;
  } else {
    metric.gauge.value = value;
  }
  Family(name).metric.push_back(std::move(metric));
}

void MetricBuilder::AddHistogram(const MetricName& name, const Latency& latency) {
  prometheus::ClientMetric metric;
  uint64_t count = 0;
  for (size_t i = 0; i < latency.counts().size(); ++i) {
    count += static_cast<uint64_t>(latency.counts()[i]);
    prometheus::ClientMetric::Bucket bucket;
    bucket.cumulative_count = count;
    bucket.upper_bound =
        i < Latency::kBounds.size() ? Latency::kBounds[i] : std::numeric_limits<double>::infinity();
    metric.histogram.bucket.push_back(bucket);
  }
  metric.histogram.sample_count = count;
  metric.histogram.sample_sum = latency.sum_seconds();
  Family(name).metric.push_back(std::move(metric));
}

std::string StateLabel(v1::JobState state) {
  const std::string name = v1::JobState_Name(state);
  return absl::AsciiStrToLower(absl::StripPrefix(name, "JOB_STATE_"));
}

std::string AgentLabel(v1::AgentState state) {
  const std::string name = v1::AgentState_Name(state);
  return absl::AsciiStrToLower(absl::StripPrefix(name, "AGENT_STATE_"));
}

void AddNodes(MetricBuilder& builder, const View& view) {
  int64_t free = 0, busy = 0, set_aside = 0, drained = 0, unusable = 0;
  std::map<v1::AgentState, int64_t> agents;
  for (const auto& node : view.nodes) {
    ++agents[node->agent()];
    ++(!node->set_aside_reason().empty()  ? set_aside
       : !node->job_id().empty()          ? busy
       : node->drained()                  ? drained
       : !node->unusable_reason().empty() ? unusable
                                          : free);
  }
  builder.Add(metrics::kNodes, {{"state", "free"}}, static_cast<double>(free));
  builder.Add(metrics::kNodes, {{"state", "busy"}}, static_cast<double>(busy));
  builder.Add(metrics::kNodes, {{"state", "set_aside"}}, static_cast<double>(set_aside));
  builder.Add(metrics::kNodes, {{"state", "drained"}}, static_cast<double>(drained));
  builder.Add(metrics::kNodes, {{"state", "unusable"}}, static_cast<double>(unusable));
  for (int i = v1::AgentState_MIN; i <= v1::AgentState_MAX; ++i) {
    const auto state = static_cast<v1::AgentState>(i);
    builder.Add(metrics::kAgents, {{"state", AgentLabel(state)}},
                static_cast<double>(agents[state]));
  }
}

// What an attached agent says of its machine.
void AddNode(MetricBuilder& builder, const v1::NodeStatus& node) {
  if (node.agent() != v1::AGENT_STATE_ATTACHED) return;
  const MetricLabels labels = {{"node", node.name()}};
  const v1::NodeResources& resources = node.report().resources();
  builder.Add(metrics::kNodeMemoryAvailable, labels,
              static_cast<double>(resources.memory_available_bytes()));
  if (resources.has_disk_free_bytes()) {
    builder.Add(metrics::kNodeDiskFree, labels, static_cast<double>(resources.disk_free_bytes()));
  }
  builder.Add(metrics::kNodeSwapUsed, labels, static_cast<double>(resources.swap_used_bytes()));
  if (node.report().condition().has_energy_joules()) {
    builder.Add(metrics::kNodeEnergy, labels, node.report().condition().energy_joules());
  }
  builder.Add(metrics::kNodeClockAhead, labels, node.clock_ahead_seconds());
  const v1::NodeCondition& condition = node.report().condition();
  if (condition.has_other_load()) {
    builder.Add(metrics::kNodeOtherLoad, labels, condition.other_load());
  }
  builder.Add(metrics::kNodeSpared, labels, node.spared_reason().empty() ? 0 : 1);
}

void AddDaemon(MetricBuilder& builder, const View& view, const MetricsMoment& moment) {
  builder.Add(metrics::kBuildInfo, {{"version", ESPALIER_VERSION}}, 1);
  builder.AddHistogram(metrics::kJournalCommitSeconds, view.stats.journal);
  builder.Add(metrics::kJournalFailures, {}, static_cast<double>(view.stats.journal_failures));
  builder.AddHistogram(metrics::kLoopHandlingSeconds, view.stats.handling);
  builder.Add(metrics::kLoopEvents, {}, static_cast<double>(view.stats.events));
  builder.Add(metrics::kLoopQueueDepth, {}, static_cast<double>(moment.queue_depth));
  builder.Add(metrics::kLoopRejected, {}, static_cast<double>(moment.rejected));
}

void AddJobState(MetricBuilder& builder, const JobView& job, const MetricLabels& labels) {
  for (int state = v1::JobState_MIN + 1; state <= v1::JobState_MAX; ++state) {
    if (!v1::JobState_IsValid(state)) continue;
    MetricLabels with_state = labels;
    with_state.emplace_back("state", StateLabel(static_cast<v1::JobState>(state)));
    builder.Add(metrics::kJobState, with_state, job.status.state() == state ? 1 : 0);
  }
}

void AddProgress(MetricBuilder& builder, const JobView& job, const MetricLabels& labels) {
  const v1::JobStatus& status = job.status;
  builder.Add(metrics::kJobStep, labels, static_cast<double>(status.step()));
  builder.Add(metrics::kJobTotalSteps, labels, static_cast<double>(status.total_steps()));
  builder.Add(metrics::kJobGeneration, labels, static_cast<double>(status.generation()));
  builder.Add(metrics::kJobTokensPerSecond, labels, status.tokens_per_second());
  builder.Add(metrics::kJobSkippedSteps, labels, static_cast<double>(status.skipped_steps()));
  if (status.step() > 0) {
    builder.Add(metrics::kJobLoss, labels, status.loss());
    builder.Add(metrics::kJobGradientNorm, labels, status.gradient_norm());
    builder.Add(metrics::kJobLearningRate, labels, status.learning_rate());
  }
  for (const TrainingHealth::Rule rule : TrainingHealth::kAll) {
    const std::string name(TrainingHealth::Name(rule));
    const auto& held = status.warnings();
    MetricLabels with_rule = labels;
    with_rule.emplace_back("rule", name);
    builder.Add(metrics::kJobWarning, with_rule,
                std::find(held.begin(), held.end(), name) == held.end() ? 0 : 1);
  }
  if (status.has_validation_loss()) {
    builder.Add(metrics::kJobValidationLoss, labels, status.validation_loss());
    builder.Add(metrics::kJobWithoutGain, labels,
                static_cast<double>(status.evaluations_without_gain()));
    builder.Add(metrics::kJobRateReductions, labels,
                static_cast<double>(status.learning_rate_reductions()));
  }
}

void AddFigures(MetricBuilder& builder, const MetricName& name, const MetricLabels& labels,
                const google::protobuf::RepeatedPtrField<v1::TaskFigure>& figures) {
  for (const v1::TaskFigure& figure : figures) {
    MetricLabels with_figure = labels;
    with_figure.emplace_back("figure", figure.name());
    builder.Add(name, with_figure, figure.value());
  }
}

void AddCheckpoint(MetricBuilder& builder, const JobView& job, const MetricLabels& labels,
                   absl::Duration now) {
  builder.Add(metrics::kJobCheckpointFailures, labels,
              static_cast<double>(job.checkpoint_failures));
  if (!job.status.has_last_checkpoint()) return;
  const v1::CheckpointReport& last = job.status.last_checkpoint();
  builder.Add(metrics::kJobCheckpointStep, labels, static_cast<double>(last.step()));
  builder.Add(metrics::kJobCheckpointSize, labels, static_cast<double>(last.bytes()));
  if (job.checkpoint_at) {
    const double age = absl::ToDoubleSeconds(now - *job.checkpoint_at);
    builder.Add(metrics::kJobCheckpointAge, labels, std::max(0.0, age));
  }
}

// What the memory governor decided and measured; nothing before the first step.
void AddWorkerPasses(MetricBuilder& builder, const v1::StepReport& step,
                     const MetricLabels& labels) {
  if (step.micro_batch() == 0) return;
  builder.Add(metrics::kWorkerMicroBatch, labels, static_cast<double>(step.micro_batch()));
  builder.Add(metrics::kWorkerMemoryLimit, labels, static_cast<double>(step.memory_limit_bytes()));
  builder.Add(metrics::kWorkerPassPeak, labels, static_cast<double>(step.pass_peak_bytes()));
  if (step.pass_predicted_bytes() == 0) return;
  builder.Add(metrics::kWorkerPassPredicted, labels,
              static_cast<double>(step.pass_predicted_bytes()));
}

void AddPeers(MetricBuilder& builder, const v1::StepReport& step, const MetricLabels& labels) {
  for (const v1::PeerArrivals& arrivals : step.arrivals()) {
    if (arrivals.seconds() <= 0) continue;
    MetricLabels with_peer = labels;
    with_peer.emplace_back("peer", absl::StrCat(arrivals.rank()));
    builder.Add(metrics::kWorkerPeerBandwidth, with_peer,
                static_cast<double>(arrivals.bytes()) / arrivals.seconds());
  }
}

void AddWorker(MetricBuilder& builder, const v1::RankStatus& rank, const MetricLabels& labels) {
  builder.Add(metrics::kWorkerMemory, labels, static_cast<double>(rank.memory_bytes()));
  builder.Add(metrics::kWorkerMemoryPeak, labels, static_cast<double>(rank.memory_peak_bytes()));
  AddWorkerPasses(builder, rank.last_step(), labels);
  AddPeers(builder, rank.last_step(), labels);
  builder.Add(metrics::kWorkerSilent, labels, rank.silent_seconds());
  builder.Add(metrics::kWorkerShard, labels, static_cast<double>(rank.shard()));
  builder.Add(metrics::kWorkerStepSeconds, labels, rank.last_step().step_seconds());
}

void AddTally(MetricBuilder& builder, const WorkerTally& tally, const MetricLabels& labels) {
  builder.Add(metrics::kWorkerExchangeBytes, labels, static_cast<double>(tally.exchange_bytes()));
  for (int i = 0; i < kGoodputAccountCount; ++i) {
    const GoodputAccount account = static_cast<GoodputAccount>(i);
    MetricLabels with_account = labels;
    with_account.emplace_back("account", std::string(GoodputAccountName(account)));
    builder.Add(metrics::kWorkerAccountSeconds, with_account, tally.seconds(account));
  }
}

MetricLabels WorkerLabels(const MetricLabels& job, const std::string& node, size_t rank) {
  MetricLabels labels = job;
  labels.emplace_back("node", node);
  labels.emplace_back("rank", absl::StrCat(rank));
  return labels;
}

void AddWorkers(MetricBuilder& builder, const JobView& job, const MetricLabels& labels,
                absl::Duration now) {
  const v1::JobStatus status = job.StatusAt(now);
  int attached = 0;
  for (const v1::RankStatus& rank : status.ranks()) {
    if (rank.attached()) ++attached;
    AddWorker(builder, rank, WorkerLabels(labels, rank.node(), static_cast<size_t>(rank.rank())));
  }
  for (size_t i = 0; i < job.tallies.size() && i < job.nodes.size(); ++i) {
    AddTally(builder, job.tallies[i], WorkerLabels(labels, job.nodes[i], i));
  }
  builder.Add(metrics::kJobWorkersAttached, labels, attached);
  builder.Add(metrics::kJobWorkersWanted, labels, status.ranks_size());
}

void AddJob(MetricBuilder& builder, const JobView& job, absl::Duration now) {
  const MetricLabels labels = {{"job", job.status.id()}};
  builder.Add(metrics::kJobInfo, {{"job", job.status.id()}, {"name", job.status.name()}}, 1);
  AddJobState(builder, job, labels);
  AddProgress(builder, job, labels);
  AddFigures(builder, metrics::kJobTaskFigure, labels, job.status.figures());
  AddFigures(builder, metrics::kJobEvaluationFigure, labels, job.status.evaluation_figures());
  AddCheckpoint(builder, job, labels, now);
  for (const auto& [cause, count] : job.restarts_by_cause) {
    builder.Add(metrics::kJobRestarts, {{"job", job.status.id()}, {"cause", cause}},
                static_cast<double>(count));
  }
  builder.Add(metrics::kJobInterruptions, labels, static_cast<double>(job.interruption.count()));
  for (size_t i = 0; i < Interruption::kPhases; ++i) {
    const auto phase = std::string(Interruption::Name(static_cast<Interruption::Phase>(i)));
    builder.Add(metrics::kJobInterrupted, {{"job", job.status.id()}, {"phase", phase}},
                job.interruption.totals()[i]);
  }
  AddWorkers(builder, job, labels, now);
}

}  // namespace

std::vector<prometheus::MetricFamily> MakeMetrics(const View& view, const MetricsMoment& moment) {
  MetricBuilder builder;
  AddDaemon(builder, view, moment);
  AddNodes(builder, view);
  for (const auto& node : view.nodes) AddNode(builder, *node);
  for (const auto& [id, job] : view.jobs) {
    const bool over = job->is_final() && moment.now - *job->final_at > moment.final_jobs_kept;
    if (!over) AddJob(builder, *job, moment.now);
  }
  return std::move(builder).Take();
}

std::vector<prometheus::MetricFamily> MetricsSource::Collect() const {
  return MakeMetrics(
      *board_.Current(),
      {.now = clock_.Monotonic(), .queue_depth = inbox_.depth(), .rejected = inbox_.rejected()});
}

namespace {

// Why nothing can listen there, as the system says it: 0 or errno.
int BindError(const HostPort& address) {
  addrinfo hints = {};
  hints.ai_flags = AI_PASSIVE | AI_NUMERICHOST;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const std::string port = absl::StrCat(address.port);
  if (getaddrinfo(address.host.c_str(), port.c_str(), &hints, &found) != 0) return EADDRNOTAVAIL;
  const absl::Cleanup free_found = [found] { freeaddrinfo(found); };
  const int fd = socket(found->ai_family, SOCK_STREAM, 0);
  if (fd < 0) return errno;
  const absl::Cleanup close_socket = [fd] { close(fd); };
  const int on = 1;
  (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));  // as prometheus-cpp's server
  return bind(fd, found->ai_addr, found->ai_addrlen) == 0 ? 0 : errno;
}

absl::Status CannotServe(const std::string& listen, absl::string_view otherwise) {
  const absl::StatusOr<HostPort> address = ParseAddress(listen);
  if (!address.ok()) return address.status();
  const int error = BindError(*address);
  const auto text = [&](absl::string_view why) {
    return absl::StrCat("cannot serve metrics on ", listen, ": ", why,
                        "; choose another IP:PORT with --metrics-listen, or metrics_listen in the "
                        "cluster file (port 0: any free one)");
  };
  if (error == EADDRINUSE) {
    return absl::UnavailableError(text("another program listens there, perhaps another espalierd"));
  }
  if (error == EADDRNOTAVAIL) {
    return absl::InvalidArgumentError(text("that is no address of this machine"));
  }
  return absl::UnavailableError(text(error == 0 ? otherwise : std::strerror(error)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<prometheus::Exposer>> Expose(const std::string& listen) {
  try {
    return std::make_unique<prometheus::Exposer>(listen);
  } catch (const std::exception& error) {
    return CannotServe(listen, error.what());
  }
}

}  // namespace espalier
