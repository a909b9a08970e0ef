#include "coordinator/core/usable.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "coordinator/core/facts.h"
#include "coordinator/core/holders.h"

namespace espalier {
namespace {

bool Differs(const std::string& ours, const std::string& theirs) {
  return !ours.empty() && !theirs.empty() && ours != theirs;
}

Obstacle AgentObstacle(const ClusterState& state, const AgentSession& agent) {
  switch (agent.state) {
    case AgentState::kNone:
      return Obstacle::kNone;
    case AgentState::kGone:
      return Obstacle::kAgentGone;
    case AgentState::kSilent:
      return Obstacle::kAgentSilent;
    case AgentState::kAttached:
      break;
  }
  const v1::NodeVersions& versions = agent.report->versions();
  if (Differs(state.versions.espalier(), versions.espalier()) ||
      Differs(state.versions.open_mpi(), versions.open_mpi())) {
    return Obstacle::kVersions;
  }
  if (absl::AbsDuration(agent.clock_ahead) >= kClockApart) return Obstacle::kClock;
  return agent.health.ailment() == Ailment::kNone ? Obstacle::kNone : Obstacle::kUnwell;
}

// "Open MPI 5.0.7 there, 4.1.4 here".
void AddVersion(std::string& text, absl::string_view what, const std::string& ours,
                const std::string& theirs) {
  if (!Differs(ours, theirs)) return;
  absl::StrAppend(&text, text.empty() ? "" : "; ", what, " ", theirs, " there, ", ours, " here");
}

std::string DescribeVersions(const ClusterState& state, const AgentSession& agent) {
  const v1::NodeVersions& ours = state.versions;
  const v1::NodeVersions& theirs = agent.report->versions();
  std::string text;
  AddVersion(text, "Espalier", ours.espalier(), theirs.espalier());
  AddVersion(text, "Open MPI", ours.open_mpi(), theirs.open_mpi());
  return absl::StrCat("has other versions (", text, "); install the same");
}

// The device that the job would take there is the one that was tried.
bool TakesTriedDevice(const Node& node, const JobRecord& job, const v1::DeviceTrial& trial) {
  const std::string& of_job = job.spec.launch().device();
  const std::string& asked = of_job.empty() || of_job == "auto" ? node.spec.device() : of_job;
  return asked.empty() || asked == "auto" || absl::StartsWith(trial.device(), asked);
}

const char* PrecisionOf(const JobRecord& job) {
  switch (job.spec.train().precision()) {
    case v1::PRECISION_BF16:
      return "bf16";
    case v1::PRECISION_FP16:
      return "fp16";
    default:
      return "fp32";
  }
}

bool DeviceFails(const Node& node, const JobRecord& job) {
  if (node.agent.state == AgentState::kNone || !node.agent.report) return false;
  const v1::DeviceTrial& trial = node.agent.report->device();
  if (!TakesTriedDevice(node, job, trial)) return false;
  return std::any_of(trial.precisions().begin(), trial.precisions().end(), [&](const auto& tried) {
    return tried.precision() == PrecisionOf(job) && !tried.failed().empty();
  });
}

std::string DescribeDevice(const AgentSession& agent) {
  const v1::DeviceTrial& trial = agent.report->device();
  std::string text;
  for (const v1::PrecisionTrial& tried : trial.precisions()) {
    if (tried.failed().empty()) continue;
    absl::StrAppend(&text, text.empty() ? "" : "; ", tried.precision(), ": ", tried.failed());
  }
  return absl::StrCat("has a device, ", trial.device(), ", that fails its self-test (", text,
                      "); choose another train.precision or launch.device");
}

// In whole hours, so that the words stay the same from report to report.
std::string DescribeClock(const AgentSession& agent) {
  const auto hours = std::llround(std::abs(absl::ToDoubleHours(agent.clock_ahead)));
  return absl::StrCat("has a clock about ", hours, hours == 1 ? " hour" : " hours",
                      agent.clock_ahead > absl::ZeroDuration() ? " ahead of" : " behind",
                      " espalierd's; set it");
}

std::string DescribeDrain(const NodeRecord& node) {
  return absl::StrCat("is drained", node.drained->empty() ? "" : " (", *node.drained,
                      node.drained->empty() ? "" : ")", "; `espalier nodes allow ",
                      node.name.text(), "` lets jobs use it again");
}

// What it held when its processes ended, and goes on with unless somebody ahead counts on it.
bool WasOwn(const Node& node, const JobRecord& job) {
  return job.state == JobState::kRegrouping &&
         std::find(job.nodes.begin(), job.nodes.end(), node.record.name) != job.nodes.end();
}

// Empty: not known.
std::string ProcessorOf(const Node* node) {
  const bool known = node != nullptr && node->agent.report.has_value();
  return known ? node->agent.report->resources().processor() : "";
}

// A reproducible job goes on where it is computed as it was: by processors of one kind. Its workers
// know more (threads, LibTorch), and look themselves.
bool ComputesOtherwise(const ClusterState& state, const Node& node, const JobRecord& job) {
  if (!job.spec.train().reproducible() || Holders(state, job).newest() == Step(0)) return false;
  const std::string own = ProcessorOf(&node);
  return std::any_of(job.trained_on.begin(), job.trained_on.end(), [&](const NodeName& name) {
    return Differs(ProcessorOf(state.nodes.Find(name)), own);
  });
}

// No generation will ever start from it, or has to.
bool IsSpare(const ClusterState& state, const Node& node, const v1::WarmState& memory) {
  const JobId id(memory.job_id());
  const auto job = state.jobs.find(id);
  if (job == state.jobs.end() || IsFinal(job->second.record.state)) return true;
  const JobRecord& record = job->second.record;
  if (memory.history() != record.history) return true;
  const int64_t published = NewestPublished(record).value();
  if (node.holder == id || memory.step() > published) return false;
  if (memory.step() < published) return true;
  const Holders holders(state, record);
  return std::any_of(state.nodes.begin(), state.nodes.end(), [&](const Node& other) {
    const bool could =
        other.record.name == node.record.name || WouldDo(Usable(state, other, record, {}).obstacle);
    return could && holders.HasPublished(other.record.name);
  });
}

// So many nodes are named in a reason; the rest are counted.
constexpr size_t kNodesNamed = 8;

std::string SomeOf(std::vector<NodeName> nodes) {
  if (nodes.size() <= kNodesNamed) return NodeList(nodes);
  const size_t more = nodes.size() - kNodesNamed;
  nodes.resize(kNodesNamed);
  return absl::StrCat(NodeList(nodes), " and ", more, " more");
}

}  // namespace

void KeptNodes::Add(Keepers& keepers, const JobRecord& keeper, From from) {
  if (from == From::kEverybody) {
    if (!keepers.from_everybody) keepers.from_everybody = keeper.id;
    return;
  }
  if (keepers.from_same_priority && keepers.priority == keeper.spec.priority()) return;
  keepers.from_same_priority = keeper.id;
  keepers.priority = keeper.spec.priority();
}

const JobId* KeptNodes::Find(const Keepers& keepers, const JobRecord& job) {
  if (keepers.from_everybody) return &*keepers.from_everybody;
  const bool same = keepers.from_same_priority && keepers.priority == job.spec.priority();
  return same ? &*keepers.from_same_priority : nullptr;
}

void KeptNodes::Keep(const JobRecord& keeper, From from) { Add(all_, keeper, from); }

void KeptNodes::Keep(const JobRecord& keeper, From from, const std::vector<NodeName>& nodes) {
  for (const NodeName& name : nodes) Add(named_[name], keeper, from);
}

const JobId* KeptNodes::AllKeptFrom(const JobRecord& job) const { return Find(all_, job); }

const JobId* KeptNodes::KeptFrom(const JobRecord& job, const NodeName& node) const {
  if (const JobId* keeper = AllKeptFrom(job)) return keeper;
  const auto found = named_.find(node);
  return found == named_.end() ? nullptr : Find(found->second, job);
}

const JobId* KeptNodes::KeptFromEverybody(const NodeName& node) const {
  if (all_.from_everybody) return &*all_.from_everybody;
  const auto found = named_.find(node);
  const bool kept = found != named_.end() && found->second.from_everybody;
  return kept ? &*found->second.from_everybody : nullptr;
}

bool IsUnwell(const Node& node) {
  return node.agent.state == AgentState::kAttached && node.agent.health.ailment() != Ailment::kNone;
}

bool MayGoByItself(const Node& node) {
  const bool has_battery =
      node.agent.report && node.agent.report->condition().has_battery_percent();
  return has_battery || !node.spec.hours().empty();
}

Obstacle NodeObstacle(const ClusterState& state, const Node& node) {
  if (node.record.drained) return Obstacle::kDrained;
  if (IsSetAside(node.record)) return Obstacle::kSetAside;
  return AgentObstacle(state, node.agent);
}

Usability Usable(const ClusterState& state, const Node& node, const JobRecord& job,
                 const KeptNodes& kept) {
  if (!MayUse(job, node.record.name)) return {Obstacle::kNotNamed, {}};
  if (const Obstacle own = NodeObstacle(state, node); own != Obstacle::kNone) return {own, {}};
  if (ComputesOtherwise(state, node, job)) return {Obstacle::kProcessor, {}};
  if (node.holder == job.id) return {};
  if (DeviceFails(node, job)) return {Obstacle::kDevice, {}};
  if (!node.holder.empty()) return {Obstacle::kHeld, node.holder};
  const JobId* keeper = WasOwn(node, job) ? kept.KeptFromEverybody(node.record.name)
                                          : kept.KeptFrom(job, node.record.name);
  if (keeper != nullptr) return {Obstacle::kKept, *keeper};
  return {};
}

std::string Describe(const ClusterState& state, const Node& node, const Usability& usability) {
  switch (usability.obstacle) {
    case Obstacle::kNone:
      return "";
    case Obstacle::kKept:
      return absl::StrCat("is kept for job ", usability.other.text(), ", ahead in the queue");
    case Obstacle::kHeld:
      return absl::StrCat("is held by job ", usability.other.text());
    case Obstacle::kDrained:
      return DescribeDrain(node.record);
    case Obstacle::kSetAside:
      return absl::StrCat("is set aside (", node.record.set_aside_reason, ")");
    case Obstacle::kAgentGone:
      return "has no agent now; start espalier-agent there";
    case Obstacle::kAgentSilent:
      return absl::StrCat("has an agent that was not heard of within ",
                          absl::FormatDuration(kAgentSilence));
    case Obstacle::kVersions:
      return DescribeVersions(state, node.agent);
    case Obstacle::kClock:
      return DescribeClock(node.agent);
    case Obstacle::kUnwell:
      return node.agent.health.why();
    case Obstacle::kProcessor:
      return absl::StrCat("has another processor (", ProcessorOf(&node),
                          ") than the nodes that computed the job so far, which is reproducible");
    case Obstacle::kDevice:
      return DescribeDevice(node.agent);
    case Obstacle::kNotNamed:
      return "is not among the nodes that the job may use";
  }
  return "";
}

std::vector<const Node*> AllowedNodes(const ClusterState& state, const JobRecord& record) {
  std::vector<const Node*> nodes;
  for (const std::string& name : record.spec.parallel().nodes()) {
    if (const Node* node = state.nodes.Find(NodeName(name))) nodes.push_back(node);
  }
  if (!record.spec.parallel().nodes().empty()) return nodes;
  for (const Node& node : state.nodes) {
    if (MayUse(record, node.record.name)) nodes.push_back(&node);
  }
  return nodes;
}

std::string WaitsFor(const JobRecord& record) {
  const int32_t least = record.spec.parallel().min_nodes();
  return absl::StrCat("waits for ", least, least == 1 ? " node" : " nodes");
}

std::string WhyItWaits(const ClusterState& state, const JobRecord& record, const KeptNodes& kept) {
  std::vector<NodeName> free;
  std::string others;
  size_t named = 0;
  size_t unnamed = 0;
  for (const Node* node : AllowedNodes(state, record)) {
    const Usability usability = Usable(state, *node, record, kept);
    if (usability.obstacle == Obstacle::kNone) {
      free.push_back(node->record.name);
    } else if (named == kNodesNamed) {
      ++unnamed;
    } else {
      ++named;
      absl::StrAppend(&others, "; ", node->record.name.text(), " ",
                      Describe(state, *node, usability));
    }
  }
  const Holders holders(state, record);
  const bool starts =
      !holders.needed() ||
      std::any_of(free.begin(), free.end(), [&](const auto& n) { return holders.Has(n); });
  std::string text =
      starts ? WaitsFor(record) : absl::StrCat("waits for ", holders.WhomItWaitsFor());
  absl::StrAppend(&text, "; free: ", SomeOf(std::move(free)), others);
  if (unnamed > 0) absl::StrAppend(&text, "; ", unnamed, " more are not free either");
  for (const std::string& name : record.spec.parallel().nodes()) {
    if (state.nodes.Find(NodeName(name)) == nullptr) {
      absl::StrAppend(&text, "; ", name, " is no node any more");
    }
  }
  return text;
}

bool HasTrained(const JobRecord& record, const NodeName& name) {
  return std::any_of(record.speeds.begin(), record.speeds.end(), [&](const SpeedRecord& speed) {
    return speed.node == name && speed.speed.measured();
  });
}

bool CanTrain(const JobRecord& record, const Node& node) {
  if (node.agent.state == AgentState::kNone) return HasTrained(record, node.record.name);
  if (!node.agent.report || !node.agent.report->has_rehearsal()) return false;
  const v1::Rehearsal& rehearsal = node.agent.report->rehearsal();
  return rehearsal.job_id() == record.id.text() && rehearsal.state() == v1::REHEARSAL_STATE_READY;
}

bool IsUnfit(const Node& node, const JobRecord& record, absl::Time now) {
  constexpr absl::Duration kCounts = absl::Minutes(10);
  const auto unfit = node.agent.unfit.find(record.id);
  return unfit != node.agent.unfit.end() && now - unfit->second < kCounts;
}

const Job* WantsRehearsal(const ClusterState& state, const Node& node) {
  if (!node.holder.empty() || NodeObstacle(state, node) != Obstacle::kNone) return nullptr;
  const Job* first = nullptr;
  for (const auto& [id, job] : state.jobs) {
    if (!HasRoom(job) || Usable(state, node, job.record, {}).obstacle != Obstacle::kNone) continue;
    const bool unfit = IsUnfit(node, job.record, state.now);
    const bool earlier = first == nullptr || unfit == IsUnfit(node, first->record, state.now)
                             ? first == nullptr || GoesBefore(job.record, first->record)
                             : !unfit;
    if (earlier) first = &job;
  }
  if (first == nullptr || !node.agent.report) return nullptr;
  const v1::Rehearsal& last = node.agent.report->rehearsal();
  const bool over = last.state() != v1::REHEARSAL_STATE_RUNNING;
  return last.job_id() == first->record.id.text() && over ? nullptr : first;
}

std::string TakeRehearsal(Node& node, absl::Time now) {
  constexpr size_t kJobsMax = 64, kLongest = 400;
  if (!node.agent.report || !node.agent.report->has_rehearsal()) return "";
  const v1::Rehearsal& found = node.agent.report->rehearsal();
  if (found.state() == v1::REHEARSAL_STATE_RUNNING) return "";
  const bool ready = found.state() == v1::REHEARSAL_STATE_READY;
  if (node.agent.unfit.size() > kJobsMax) node.agent.unfit.clear();
  if (ready) node.agent.unfit.erase(JobId(found.job_id()));
  if (!ready) node.agent.unfit[JobId(found.job_id())] = now;
  const std::string text =
      absl::StrCat("node ", node.record.name.text(),
                   ready ? " has prepared and can be taken in" : " cannot train it: ",
                   ready ? "" : found.text().substr(0, kLongest));
  const std::string told = absl::StrCat(found.job_id(), "/", text);
  return std::exchange(node.agent.told_of_rehearsal, told) == told ? "" : text;
}

bool KeptInMemory(const ClusterState& state, const JobRecord& record,
                  const std::vector<NodeName>& nodes) {
  // Memory of another version is of no use, and these would start as espalierd's.
  const std::string& version = state.versions.espalier();
  const std::vector<TrackedRank>& ranks = state.jobs.at(record.id).world.ranks;
  const bool outdated = std::any_of(ranks.begin(), ranks.end(), [&](const TrackedRank& rank) {
    return !rank.version.empty() && !version.empty() && rank.version != version;
  });
  if (outdated) return false;
  return std::all_of(nodes.begin(), nodes.end(), [&](const NodeName& name) {
    const Node* const node = state.nodes.Find(name);
    if (node == nullptr || node->agent.state != AgentState::kAttached || !node->agent.report ||
        NodeObstacle(state, *node) != Obstacle::kNone) {
      return false;
    }
    const auto& warm = node->agent.report->warm();
    return std::any_of(warm.begin(), warm.end(), [&](const v1::WarmState& one) {
      return one.job_id() == record.id.text() && one.history() == record.history &&
             one.taken_by() == record.generation.value() && one.step() > 0;
    });
  });
}

std::vector<v1::WarmState> TakeSpareMemory(const ClusterState& state, Node& node) {
  std::vector<v1::WarmState> spare;
  if (!node.agent.report) return spare;
  google::protobuf::RepeatedPtrField<v1::WarmState> kept;
  for (const v1::WarmState& memory : node.agent.report->warm()) {
    (IsSpare(state, node, memory) ? spare.emplace_back() : *kept.Add()) = memory;
  }
  *node.agent.report->mutable_warm() = std::move(kept);
  return spare;
}

}  // namespace espalier
