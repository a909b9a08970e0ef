// The queue: which jobs get which nodes. By priority, then age; a job that waits keeps the nodes it
// could use from those behind it, unless they would give them back when it needs them; a higher
// priority preempts lower ones, which stop with a checkpoint and queue again.
#include <algorithm>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/core/advance.h"
#include "coordinator/core/directives.h"
#include "coordinator/core/facts.h"
#include "coordinator/core/generation.h"
#include "coordinator/core/holders.h"
#include "coordinator/core/usable.h"

namespace espalier {
namespace {

// What a job that cannot start has to expect.
enum class Outlook {
  // Fewer than min_nodes would do even if all were free.
  kHopeless,
  // A job that it cannot preempt has to end first, nobody knows when.
  kOpen,
  // The same, and it lacks nothing but a node that holds its state.
  kOpenForHolder,
  // It starts as soon as what leaves has left.
  kSoon,
};

// What becomes of the nodes of a job that holds some which another waits for.
enum class Hold {
  // It keeps them for as long as it likes.
  kStays,
  // They come free.
  kLeaves,
  // It can be preempted.
  kYields,
  // It can be preempted once it has got further.
  kYieldsLater,
};

// Something of the job runs, and is on its way out.
bool IsLeaving(const JobRecord& record) {
  return record.processes == Processes::kEnding ||
         (record.processes == Processes::kRunning &&
          (record.verdict != Verdict::kOpen || record.directive.run_state == RunState::kStop));
}

// Once its processes are gone, it goes on with the nodes it has.
bool KeepsItsPlace(const JobRecord& record) {
  return record.state == JobState::kRecovering && record.verdict == Verdict::kOpen &&
         record.desired != DesiredState::kPauseHard && !IsExternal(record);
}

// Once its processes are gone, it is in the queue.
bool QueuesAgain(const JobRecord& record) {
  if (record.verdict != Verdict::kOpen || IsExternal(record)) return false;
  return record.state == JobState::kRegrouping ||
         (record.state == JobState::kPausing && record.desired == DesiredState::kRun);
}

bool CanYield(const JobRecord& record) {
  return record.state == JobState::kRunning || record.state == JobState::kPausedSoft ||
         (record.state == JobState::kRecovering && record.processes == Processes::kNone);
}

Hold HoldOn(const JobRecord& holder, const JobRecord& waiting) {
  const bool keeps_place = KeepsItsPlace(holder);
  if (IsLeaving(holder) && !keeps_place) {
    const bool goes_on =
        holder.state == JobState::kRegrouping && holder.spec.priority() == waiting.spec.priority();
    const bool stays = QueuesAgain(holder) && (goes_on || GoesBefore(holder, waiting));
    return stays ? Hold::kStays : Hold::kLeaves;
  }
  if (IsExternal(holder) || holder.spec.priority() >= waiting.spec.priority()) return Hold::kStays;
  return CanYield(holder) ? Hold::kYields : Hold::kYieldsLater;
}

void Yield(Transaction& transaction, Job& job, const JobRecord& to) {
  JobRecord& record = job.record;
  const std::string reason =
      absl::StrCat("preempted by job ", to.id.text(), " (priority ", to.spec.priority(), " over ",
                   record.spec.priority(), ")");
  if (record.processes == Processes::kNone) {
    transaction.Enter(job, JobState::kQueued, reason);
    return;
  }
  if (record.state == JobState::kPausedSoft) record.desired = DesiredState::kPauseHard;
  transaction.Enter(job, JobState::kPausing, reason);
  ChangeDirective(transaction, job, {.run_state = RunState::kStop, .checkpoint_before_stop = true});
}

// Nodes of use to the job that waits, and how many of them it could start from.
struct Supply {
  int64_t nodes = 0;
  int64_t holders = 0;

  void Add(const Supply& other) {
    nodes += other.nodes;
    holders += other.holders;
  }
  Supply Without(const Supply& other) const {
    return {nodes - other.nodes, holders - other.holders};
  }
  bool Covers(const Supply& need) const { return nodes >= need.nodes && holders >= need.holders; }
};

struct Victim {
  Job* job = nullptr;
  Supply brings;
};

// The nodes that would do for a job, by how soon it can have them.
struct Census {
  Supply all;
  // Free, or of jobs that are on their way out.
  Supply coming;
  // Of jobs that have to yield, but cannot before they run.
  Supply later;
  std::vector<Victim> victims;
};

Census Count(Transaction& transaction, const JobRecord& waiting, const KeptNodes& kept) {
  const ClusterState& state = transaction.state();
  Census census;
  const Holders holders(state, waiting);
  const bool any_will_do = !holders.needed();
  std::map<JobId, Supply> held;
  for (const Node& node : state.nodes) {
    const Obstacle obstacle = Usable(state, node, waiting, kept).obstacle;
    if (!WouldDo(obstacle)) continue;
    const bool holds = any_will_do || holders.Has(node.record.name);
    const Supply one{1, holds ? 1 : 0};
    census.all.Add(one);
    if (obstacle == Obstacle::kNone) census.coming.Add(one);
    const bool theirs = kept.KeptFrom(waiting, node.record.name) != nullptr;
    if (obstacle == Obstacle::kHeld && !theirs) held[node.holder].Add(one);
  }
  for (const auto& [id, nodes] : held) {
    Job& holder = *transaction.FindJob(id);
    switch (HoldOn(holder.record, waiting)) {
      case Hold::kStays:
        break;
      case Hold::kLeaves:
        census.coming.Add(nodes);
        break;
      case Hold::kYields:
        census.victims.push_back({&holder, nodes});
        break;
      case Hold::kYieldsLater:
        census.later.Add(nodes);
        break;
    }
  }
  return census;
}

// Some of the victims whose nodes, with those that come anyway, are enough; empty when not even all
// of them would do.
std::vector<Victim> Choose(const Census& census, const Supply& need) {
  std::vector<Victim> victims = census.victims;
  std::sort(victims.begin(), victims.end(), [](const Victim& a, const Victim& b) {
    const auto key = [](const JobRecord& record) {
      return std::make_tuple(record.spec.priority(), -record.number);
    };
    return key(a.job->record) < key(b.job->record);
  });
  Supply supply = census.coming;
  size_t taken = 0;
  while (taken < victims.size() && !supply.Covers(need)) supply.Add(victims[taken++].brings);
  if (!supply.Covers(need)) return {};
  victims.resize(taken);
  // The last one brought enough to spare some of those before it.
  std::vector<Victim> chosen;
  for (const Victim& victim : victims) {
    if (const Supply less = supply.Without(victim.brings); less.Covers(need)) {
      supply = less;
    } else {
      chosen.push_back(victim);
    }
  }
  return chosen;
}

// Preempts as few jobs of lower priority as will do, the lowest and youngest first; none when the
// job could not start even so, and none for nodes that are kept for another.
Outlook MakeRoom(Transaction& transaction, const Job& waiting, const KeptNodes& kept) {
  const Census census = Count(transaction, waiting.record, kept);
  const Supply need{waiting.record.spec.parallel().min_nodes(), 1};
  if (!census.all.Covers(need)) return Outlook::kHopeless;
  if (census.coming.Covers(need)) return Outlook::kSoon;
  const std::vector<Victim> victims = Choose(census, need);
  for (const Victim& victim : victims) Yield(transaction, *victim.job, waiting.record);
  if (!victims.empty()) return Outlook::kSoon;
  Supply in_time = census.coming;
  in_time.Add(census.later);
  for (const Victim& victim : census.victims) in_time.Add(victim.brings);
  if (in_time.Covers(need)) return Outlook::kSoon;
  return census.coming.nodes >= need.nodes ? Outlook::kOpenForHolder : Outlook::kOpen;
}

bool Waits(const Job& job, absl::Time now) {
  const JobRecord& record = job.record;
  if (IsExternal(record) || record.processes != Processes::kNone) return false;
  if (record.state == JobState::kQueued || record.state == JobState::kRegrouping) return true;
  return record.state == JobState::kRecovering && now >= record.retry_at;
}

std::vector<Job*> WaitingJobs(Transaction& transaction) {
  std::vector<Job*> waiting;
  for (auto& [id, job] : transaction.state().jobs) {
    if (Waits(job, transaction.now())) waiting.push_back(&job);
  }
  std::sort(waiting.begin(), waiting.end(),
            [](const Job* a, const Job* b) { return GoesBefore(a->record, b->record); });
  return waiting;
}

void KeepWaiting(Transaction& transaction, Job& job, const std::string& reason) {
  JobRecord& record = job.record;
  if (record.state != JobState::kQueued) {
    transaction.Enter(job, JobState::kQueued, reason);
  } else if (record.reason != reason) {
    record.reason = reason;
    transaction.Persist(job);
  }
}

// Up to max_nodes of the nodes that it can have, those that hold its newest state first, then those
// that it prefers, then those of the last generation; none when they are too few, or none of them
// holds that state. In the order of parallel.nodes (of the cluster file when it is empty), but
// those that may go by themselves last: the lowest ranks write the checkpoints, also that of a
// leave.
std::vector<NodeName> Place(const ClusterState& state, const JobRecord& record,
                            const KeptNodes& kept) {
  std::vector<NodeName> free;
  for (const Node* node : AllowedNodes(state, record)) {
    if (Usable(state, *node, record, kept).obstacle == Obstacle::kNone) {
      free.push_back(node->record.name);
    }
  }
  if (free.size() < static_cast<size_t>(record.spec.parallel().min_nodes())) return {};
  std::vector<NodeName> chosen = free;
  const auto used_before = [&](const NodeName& node) {
    return std::find(record.nodes.begin(), record.nodes.end(), node) != record.nodes.end();
  };
  std::stable_partition(chosen.begin(), chosen.end(), used_before);
  const auto& preferred = record.spec.parallel().prefer_nodes();
  const auto place = [&](const NodeName& node) {
    return std::find(preferred.begin(), preferred.end(), node.text());
  };
  std::stable_sort(chosen.begin(), chosen.end(),
                   [&](const NodeName& a, const NodeName& b) { return place(a) < place(b); });
  // Those that have found that they cannot train it come last, and only where others are too few.
  const auto unfit = std::stable_partition(chosen.begin(), chosen.end(), [&](const NodeName& node) {
    return !IsUnfit(*state.nodes.Find(node), record, state.now);
  });
  const auto least = static_cast<ptrdiff_t>(record.spec.parallel().min_nodes());
  chosen.resize(std::max(unfit - chosen.begin(), least));
  const Holders holders(state, record);
  const auto rest = std::stable_partition(chosen.begin(), chosen.end(),
                                          [&](const NodeName& node) { return holders.Has(node); });
  if (holders.needed() && rest == chosen.begin()) return {};
  chosen.resize(std::min(chosen.size(), static_cast<size_t>(MaxNodes(record))));
  std::vector<NodeName> placed;
  for (const NodeName& node : free) {
    if (std::find(chosen.begin(), chosen.end(), node) != chosen.end()) placed.push_back(node);
  }
  // Shares are given by rank.
  if (!record.spec.parallel().shares().empty()) return placed;
  std::stable_partition(placed.begin(), placed.end(), [&](const NodeName& node) {
    return !MayGoByItself(*state.nodes.Find(node));
  });
  return placed;
}

// True: the job has started.
bool TryStart(Transaction& transaction, Job& job, const KeptNodes& kept) {
  const JobRecord& record = job.record;
  const std::vector<NodeName> nodes = Place(transaction.state(), record, kept);
  if (nodes.empty()) return false;
  StartGeneration(transaction, job, nodes,
                  absl::StrCat("starts generation ", record.generation.next().value(), " on ",
                               NodeList(nodes)));
  return true;
}

// The nodes of which it could use some, all but when it names or excludes any.
void Keep(const ClusterState& state, const JobRecord& record, KeptNodes::From from,
          KeptNodes& kept) {
  const v1::ParallelSpec& parallel = record.spec.parallel();
  if (parallel.nodes().empty() && parallel.exclude_nodes().empty()) return kept.Keep(record, from);
  std::vector<NodeName> names;
  for (const Node* node : AllowedNodes(state, record)) names.push_back(node->record.name);
  kept.Keep(record, from, names);
}

// Keeps for the job what it could use, as far as that helps it.
void KeepFor(Transaction& transaction, const Job& job, KeptNodes& kept) {
  const ClusterState& state = transaction.state();
  switch (MakeRoom(transaction, job, kept)) {
    case Outlook::kHopeless:
      return;
    case Outlook::kOpen:
      return Keep(state, job.record, KeptNodes::From::kSamePriority, kept);
    case Outlook::kOpenForHolder:
      return kept.Keep(job.record, KeptNodes::From::kSamePriority,
                       Holders(state, job.record).Names());
    case Outlook::kSoon:
      return Keep(state, job.record, KeptNodes::From::kEverybody, kept);
  }
}

// A job that cannot go on with what it has queues before anybody is asked to make room: what it
// held may be all that another needs.
void GiveUpPlaces(Transaction& transaction, const std::vector<Job*>& waiting) {
  const KeptNodes none;
  for (Job* job : waiting) {
    const JobRecord& record = job->record;
    if (record.state == JobState::kQueued) continue;
    if (!Place(transaction.state(), record, none).empty()) continue;
    KeepWaiting(transaction, *job, WhyItWaits(transaction.state(), record, none));
  }
}

// After a restart, agents have a moment to come back before anybody decides without them.
bool AgentsAreDue(ClusterState& state) {
  const auto missing = [](const Node& node) {
    return node.record.has_agent && (node.agent.attached_at == absl::UnixEpoch() ||
                                     (node.agent.report && node.agent.report->warm_unknown()));
  };
  const bool due =
      state.now < state.agents_due && std::any_of(state.nodes.begin(), state.nodes.end(), missing);
  if (!due) state.agents_due = absl::InfinitePast();
  return due;
}

}  // namespace

void WatchQueue(Transaction& transaction) {
  const ClusterState& state = transaction.state();
  const bool waits_for_agents = state.agents_due != absl::InfinitePast();
  if (waits_for_agents && transaction.now() >= state.agents_due) transaction.QueueChanged();
  for (const auto& [id, job] : state.jobs) {
    const bool recovering = job.record.state == JobState::kRecovering;
    const bool due = recovering && Waits(job, transaction.now());
    if (due || MayTakeIn(job, transaction.now())) transaction.QueueChanged();
  }
}

void Schedule(Transaction& transaction) {
  if (AgentsAreDue(transaction.state())) return;
  const std::vector<Job*> waiting = WaitingJobs(transaction);
  GiveUpPlaces(transaction, waiting);
  KeptNodes kept;
  // A change of nodes is no end: nobody of its priority waits for one, however old.
  for (const Job* job : waiting) {
    if (job->record.state != JobState::kRegrouping) continue;
    kept.Keep(job->record, KeptNodes::From::kSamePriority, job->record.nodes);
  }
  for (Job* job : waiting) {
    const JobId* ahead =
        job->record.state == JobState::kQueued ? kept.AllKeptFrom(job->record) : nullptr;
    if (ahead != nullptr) {
      KeepWaiting(transaction, *job,
                  absl::StrCat(WaitsFor(job->record), "; all are kept for job ", ahead->text(),
                               ", ahead in the queue"));
    } else if (!TryStart(transaction, *job, kept)) {
      KeepWaiting(transaction, *job, WhyItWaits(transaction.state(), job->record, kept));
      KeepFor(transaction, *job, kept);
    }
  }
  ChangeNodes(transaction, kept);
}

}  // namespace espalier
