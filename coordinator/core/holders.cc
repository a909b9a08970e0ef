#include "coordinator/core/holders.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/core/facts.h"

namespace espalier {
namespace {

const HolderRecord* Find(const JobRecord& record, const NodeName& node) {
  const auto found = std::find_if(record.holders.begin(), record.holders.end(),
                                  [&](const HolderRecord& holder) { return holder.node == node; });
  return found == record.holders.end() ? nullptr : &*found;
}

HolderRecord* Find(JobRecord& record, const NodeName& node) {
  return const_cast<HolderRecord*>(Find(std::as_const(record), node));
}

// The agent has seen it in the node's state folder, and no rank has passed over it there: only that
// one reads all of it.
bool AgentHas(const Node& node, const JobRecord& record, Step step) {
  const HolderRecord* const known = Find(record, node.record.name);
  const bool passed_over = known != nullptr && known->passed_over >= step;
  return !passed_over && NewestSeen(node, record.id) >= step;
}

// A process that nobody could end has it; nobody else can have it before that is over.
bool IsOutOfReach(const v1::WarmState& memory, const JobRecord& record) {
  return memory.taken_by() != 0 && memory.taken_by() < record.generation.value();
}

// An agent is believed where the job has been: whoever has the certificate of some node could hold
// up every job otherwise.
bool HasRunOn(const JobRecord& record, const NodeName& node) {
  return Find(record, node) != nullptr;
}

// Said while the newest generation trained: there is more by now, as much as on its other nodes.
// One that did not come to its first step may have left an older state that was about to be
// replaced.
bool WasInUse(const Node& node, const JobRecord& record) {
  if (record.trained_on != record.nodes) return false;
  const auto& warm = node.agent.report->warm();
  return std::any_of(warm.begin(), warm.end(), [&](const v1::WarmState& one) {
    return one.job_id() == record.id.text() && one.history() == record.history &&
           one.taken_by() != 0 && one.taken_by() == record.generation.value();
  });
}

// Of several workers the newest; Step(0): nothing of use.
Step MemoryOf(const Node& node, const JobRecord& record) {
  Step newest(0);
  if (!HasRunOn(record, node.record.name)) return newest;
  const Step last(record.spec.train().steps());
  for (const v1::WarmState& one : node.agent.report->warm()) {
    const bool counts = one.job_id() == record.id.text() && one.history() == record.history;
    if (counts && Step(one.step()) <= last && !IsOutOfReach(one, record))
      newest = std::max(newest, Step(one.step()));
  }
  return newest;
}

}  // namespace

Step NewestPublished(const JobRecord& record) {
  Step newest(0);
  for (const HolderRecord& holder : record.holders) newest = std::max(newest, holder.step);
  return newest;
}

std::optional<Step> NewestSeen(const Node& node, const JobId& job) {
  if (node.agent.state != AgentState::kAttached || !node.agent.report) return std::nullopt;
  Step newest(0);
  for (const v1::HeldState& held : node.agent.report->held()) {
    if (held.job_id() == job.text()) newest = std::max(newest, Step(held.step()));
  }
  return newest;
}

std::vector<NodeName> HoldersOfPublished(const JobRecord& record) {
  std::vector<NodeName> nodes;
  const Step newest = NewestPublished(record);
  for (const HolderRecord& holder : record.holders) {
    if (newest > Step(0) && holder.step == newest) nodes.push_back(holder.node);
  }
  return nodes;
}

Holders::Holders(const ClusterState& state, const JobRecord& record)
    : state_(state), record_(record), published_(NewestPublished(record)) {
  for (const Node& node : state.nodes) {
    if (!node.agent.report) continue;
    const Step step = MemoryOf(node, record);
    if (step == Step(0) || step < published_) continue;
    memories_[node.record.name] = {step, WasInUse(node, record)};
    in_memory_ = std::max(in_memory_, step);
  }
  if (!InMemoryAlone()) return;
  std::erase_if(memories_, [&](const auto& memory) { return memory.second.step <= published_; });
}

bool Holders::gone() const {
  return memories_.empty() && !record_.holders.empty() && published_ == Step(0) &&
         record_.checkpoint && record_.checkpoint->step > Step(0);
}

bool Holders::needed() const {
  if (IsExternal(record_)) return false;
  if (gone() || InMemoryAlone()) return true;
  return !record_.spec.checkpoint().shared() && (published_ > Step(0) || BeforeFirstStep());
}

bool Holders::HasPublished(const NodeName& node) const {
  if (BeforeFirstStep()) {
    const auto& nodes = record_.practised_on;
    return std::find(nodes.begin(), nodes.end(), node) != nodes.end();
  }
  if (published_ == Step(0)) return false;
  const Node* const known = state_.nodes.Find(node);
  if (known != nullptr && AgentHas(*known, record_, published_)) return true;
  const std::vector<NodeName> holders = HoldersOfPublished(record_);
  return std::any_of(holders.begin(), holders.end(), [&](const NodeName& holder) {
    if (holder == node) return true;
    const Node* const other = state_.nodes.Find(holder);
    return known != nullptr && other != nullptr && !known->spec.address().empty() &&
           known->spec.address() == other->spec.address();
  });
}

bool Holders::Has(const NodeName& node) const {
  const auto memory = memories_.find(node);
  if (!InMemoryAlone()) return memory != memories_.end() || HasPublished(node);
  if (memory == memories_.end()) return false;
  return memory->second.was_in_use || memory->second.step.next() >= in_memory_;
}

std::vector<NodeName> Holders::Names() const {
  if (BeforeFirstStep()) return record_.practised_on;
  std::vector<NodeName> nodes;
  if (!InMemoryAlone()) nodes = HoldersOfPublished(record_);
  for (const auto& [node, memory] : memories_) {
    const bool named = std::find(nodes.begin(), nodes.end(), node) != nodes.end();
    if (!named && Has(node)) nodes.push_back(node);
  }
  return nodes;
}

Step Holders::LeastOn(const std::vector<NodeName>& nodes) const {
  Step least = published_;
  for (const NodeName& node : nodes) {
    const auto memory = memories_.find(node);
    if (memory != memories_.end()) least = std::max(least, memory->second.step);
  }
  return least;
}

std::string Holders::Describe() const {
  if (BeforeFirstStep()) {
    return absl::StrCat("what was done before its first step on ", NodeList(Names()));
  }
  return absl::StrCat("step ", newest().value(), InMemoryAlone() ? " in the memory of " : " on ",
                      NodeList(Names()));
}

std::string Holders::WhomItWaitsFor() const {
  const std::string otherwise =
      absl::StrCat("; to do without it: espalier resume ", record_.id.text(), " --from-scratch");
  if (gone()) {
    return absl::StrCat("its state of step ", record_.checkpoint->step.value(),
                        ", which no node holds any more; put the checkpoint back", otherwise);
  }
  const std::vector<NodeName> holders = Names();
  const std::string what = BeforeFirstStep() ? "what was done before its first step"
                                             : absl::StrCat("its state of step ", newest().value(),
                                                            InMemoryAlone() ? " in memory" : "");
  return absl::StrCat(NodeList(holders), holders.size() == 1 ? ", which holds " : ", which hold ",
                      what, otherwise);
}

// Memory has gone on since it was last heard of.
std::string ResumesFrom(const ClusterState& state, const JobRecord& record) {
  const Holders holders(state, record);
  if (holders.newest() > NewestPublished(record)) {
    return absl::StrCat("from what is in the memory of ", NodeList(holders.Names()), ", step ",
                        holders.newest().value(), " or newer");
  }
  Step published = NewestPublished(record);
  if (record.checkpoint && record.checkpoint->error.empty()) published = record.checkpoint->step;
  if (published == Step(0)) return "from the beginning";
  return absl::StrCat("from the checkpoint of step ", published.value());
}

bool MemoryChanged(const Node& node, const std::optional<v1::NodeReport>& before) {
  const auto left_alone = [&](const std::optional<v1::NodeReport>& report) {
    std::set<std::tuple<std::string, int64_t, int64_t, int64_t>> states;
    if (!report) return states;
    if (report->warm_unknown()) states.emplace();
    for (const v1::WarmState& one : report->warm()) {
      if (one.job_id() != node.holder.text()) {
        states.emplace(one.job_id(), one.history(), one.step(), one.taken_by());
      }
    }
    return states;
  };
  return left_alone(node.agent.report) != left_alone(before);
}

void NoteLaunch(JobRecord& record) {
  for (const NodeName& node : record.nodes) {
    if (Find(record, node) == nullptr) record.holders.push_back({node, Step(0)});
  }
}

bool NoteHolder(JobRecord& record, const NodeName& node, Step step) {
  HolderRecord* known = Find(record, node);
  if (known == nullptr) {
    record.holders.push_back({node, step});
    return true;
  }
  const bool more = step > known->step;
  if (more) known->step = step;
  return more;
}

std::optional<Step> NoteFound(JobRecord& record, const NodeName& node, Step step,
                              std::optional<Step> seen) {
  HolderRecord* known = Find(record, node);
  if (known == nullptr) {
    if (step > Step(0)) record.holders.push_back({node, step});
    return std::nullopt;
  }
  const Step there = std::max(known->passed_over, seen.value_or(NewestPublished(record)));
  known->passed_over = step < there ? there : Step(0);
  const Step before = std::exchange(known->step, step);
  if (before <= step) return std::nullopt;
  return before;
}

bool IsAboutTheMost(const JobRecord& record, int64_t kept) {
  constexpr int64_t kPart = 10;
  return kept >= record.kept - record.kept / kPart;
}

bool NotePractisedOn(JobRecord& record, const World& world, bool most) {
  if (record.step > Step(0) || record.kept == 0) return false;
  std::vector<NodeName> nodes;
  if (!most) nodes = record.practised_on;
  for (const TrackedRank& rank : world.ranks) {
    const auto known = std::find(nodes.begin(), nodes.end(), rank.node);
    const bool keeps = rank.keeps_most.value_or(most || known != nodes.end());
    if (known == nodes.end()) {
      if (keeps) nodes.push_back(rank.node);
    } else if (!keeps) {
      nodes.erase(known);
    }
  }
  if (nodes.empty() || nodes == record.practised_on) return false;
  record.practised_on = std::move(nodes);
  return true;
}

void ForgetNewest(JobRecord& record, bool in_memory) {
  ++record.history;
  if (in_memory) return;
  record.kept = record.fault_kept = 0;
  record.practised_on.clear();
  const Step newest = NewestPublished(record);
  for (HolderRecord& holder : record.holders) {
    if (holder.step == newest) holder.step = Step(0);
  }
  record.checkpoint.reset();
}

}  // namespace espalier
