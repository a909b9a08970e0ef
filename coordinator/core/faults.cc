#include "coordinator/core/faults.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/check.h"
#include "coordinator/core/facts.h"
#include "coordinator/core/holders.h"
#include "coordinator/core/usable.h"

namespace espalier {
namespace {

void SetAside(Transaction& transaction, NodeRecord& node, const std::string& reason) {
  const NodePolicy policy;
  if (transaction.now() - node.set_aside_until > policy.good_spell) node.set_asides = 0;
  const absl::Duration span = SetAsideSpan(++node.set_asides);
  node.set_aside_until = transaction.now() + span;
  node.set_aside_reason = reason;
  node.faults.clear();
}

bool Contains(const std::vector<NodeName>& nodes, const NodeName& name) {
  return std::find(nodes.begin(), nodes.end(), name) != nodes.end();
}

// The job has nodes enough without these.
bool CanSpare(const ClusterState& state, const JobRecord& record,
              const std::vector<NodeName>& names) {
  int32_t others = 0;
  for (const Node& node : state.nodes) {
    const bool would_do = WouldDo(Usable(state, node, record, {}).obstacle);
    if (would_do && !Contains(names, node.record.name)) ++others;
  }
  return others >= record.spec.parallel().min_nodes();
}

// No other node that would do holds what the job is to go on from.
bool IsTheOnlyHolder(const ClusterState& state, const JobRecord& record, const NodeName& name) {
  const Holders holders(state, record);
  if (!holders.needed() || !holders.Has(name)) return false;
  return std::none_of(state.nodes.begin(), state.nodes.end(), [&](const Node& node) {
    return node.record.name != name && WouldDo(Usable(state, node, record, {}).obstacle) &&
           holders.Has(node.record.name);
  });
}

// Nodes of a generation on which the job cannot go on as they are, whether it can spare them or
// not.
std::vector<NodeName> Unfit(const Job& job) {
  std::vector<NodeName> unfit;
  for (const TrackedRank& rank : job.world.ranks) {
    if (rank.unfit) unfit.push_back(rank.node);
  }
  return unfit;
}

// Nodes of a generation that has committed nothing yet which are new to the job, and which it can
// spare.
std::vector<NodeName> Newcomers(const ClusterState& state, const Job& job) {
  std::vector<NodeName> newcomers;
  const JobState now = job.record.state;
  const bool begins =
      now == JobState::kLaunching || now == JobState::kRunning || now == JobState::kRecovering;
  if (!begins || job.record.trained_on.empty()) return newcomers;
  for (const NodeName& node : job.record.nodes) {
    if (!Contains(job.record.trained_on, node)) newcomers.push_back(node);
  }
  if (!CanSpare(state, job.record, newcomers)) newcomers.clear();
  return newcomers;
}

// Whether the job is further than at all faults before; notes how far it is.
bool Advanced(JobRecord& record) {
  const auto now = std::make_pair(record.step, record.kept);
  if (now <= std::make_pair(record.fault_step, record.fault_kept)) return false;
  std::tie(record.fault_step, record.fault_kept) = now;
  return true;
}

}  // namespace

absl::Duration SetAsideSpan(int32_t set_asides) {
  const NodePolicy policy;
  absl::Duration span = policy.first_set_aside;
  for (int32_t i = 1; i < set_asides && span < policy.longest_set_aside; ++i) span *= 2;
  return std::min(span, policy.longest_set_aside);
}

bool CanSpare(const ClusterState& state, const JobRecord& record, const NodeName& name) {
  return CanSpare(state, record, std::vector<NodeName>{name});
}

absl::Duration Backoff(const v1::HealthSpec& health, size_t faults_in_window) {
  absl::Duration wait = absl::Seconds(health.restart_backoff_seconds());
  for (size_t i = 1; i < faults_in_window && wait < kLongestBackoff; ++i) wait *= 2;
  return std::min(wait, kLongestBackoff);
}

void NoteAdvance(JobRecord& record) {
  if (!Advanced(record)) return;
  record.faults.clear();
  record.unseen_ends = 0;
  record.failure.reset();
  record.unexplained = 0;
  record.unheard.clear();
}

bool NoteLateAdvance(JobRecord& record) {
  if (!Advanced(record)) return false;
  if (!record.faults.empty()) record.faults.erase(record.faults.begin(), record.faults.end() - 1);
  record.unexplained = std::min(record.unexplained, 1);
  return true;
}

void CountRestart(Transaction& transaction, Job& job, const std::string& reason) {
  JobRecord& record = job.record;
  NoteAdvance(record);
  const v1::HealthSpec& health = record.spec.health();
  const absl::Duration window = absl::Seconds(health.restart_window_seconds());
  auto& faults = record.faults;
  faults.erase(std::remove_if(faults.begin(), faults.end(),
                              [&](absl::Time at) { return transaction.now() - at > window; }),
               faults.end());
  if (faults.size() >= static_cast<size_t>(health.max_restarts())) {
    record.verdict = Verdict::kFail;
    record.verdict_reason =
        absl::StrCat(reason, "; no restart is left (health.max_restarts = ", health.max_restarts(),
                     " within ", absl::FormatDuration(window), " without a new step)");
    transaction.Enter(job, JobState::kRecovering, record.verdict_reason);
    return;
  }
  faults.push_back(transaction.now());
  ++record.restarts;
  const absl::Duration wait = Backoff(health, faults.size());
  record.retry_at = transaction.now() + wait;
  transaction.Enter(job, JobState::kRecovering,
                    absl::StrCat(reason, "; restart ", faults.size(), " of ", health.max_restarts(),
                                 " after ", absl::FormatDuration(wait)));
}

void RetryLaunch(Transaction& transaction, Job& job, const std::string& reason) {
  JobRecord& record = job.record;
  const bool wanted = record.state == JobState::kLaunching && record.verdict == Verdict::kOpen &&
                      record.processes == Processes::kRunning &&
                      record.desired != DesiredState::kPauseHard;
  const bool trained_there =
      std::all_of(record.nodes.begin(), record.nodes.end(),
                  [&](const NodeName& name) { return Contains(record.trained_on, name); });
  if (!wanted || !trained_there) return;
  const absl::Duration wait =
      std::max(absl::Seconds(1), Backoff(record.spec.health(), ++job.vain_launches));
  record.retry_at = transaction.now() + wait;
  record.processes = Processes::kEnding;
  transaction.Enter(job, JobState::kRecovering,
                    absl::StrCat(reason, "; the same nodes have trained it; tries again after ",
                                 absl::FormatDuration(wait)));
}

void BlameNode(Transaction& transaction, Job& job, Rank rank, const std::string& reason) {
  const auto index = static_cast<size_t>(rank.value());
  if (std::exchange(job.world.blamed, true)) return;
  if (IsExternal(job.record) || index >= job.record.nodes.size()) return;
  Node* edited = transaction.state().nodes.Edit(job.record.nodes[index]);
  if (edited == nullptr || IsSetAside(edited->record)) return;
  NodeRecord& node = edited->record;
  const NodePolicy policy;
  auto& faults = node.faults;
  faults.erase(
      std::remove_if(faults.begin(), faults.end(),
                     [&](absl::Time at) { return transaction.now() - at > policy.window; }),
      faults.end());
  faults.push_back(transaction.now());
  if (faults.size() >= policy.faults && CanSpare(transaction.state(), job.record, node.name) &&
      !IsTheOnlyHolder(transaction.state(), job.record, node.name)) {
    SetAside(transaction, node,
             absl::StrCat(faults.size(), " faults within ", absl::FormatDuration(policy.window),
                          ", the last: ", reason));
  }
  transaction.Persist(node);
}

void NoteSilentPeers(Transaction& transaction, Job& job, const WorkerFinished& report) {
  constexpr size_t kMost = 256;  // a few generations of many ranks
  if (report.silent_ranks.empty()) return;
  JobRecord& record = job.record;
  NoteAdvance(record);
  for (const Rank rank : report.silent_ranks) {
    const bool known = rank.value() >= 0 && rank.value() < std::ssize(record.nodes);
    if (known && record.unheard.size() < kMost) {
      record.unheard.push_back(record.nodes[static_cast<size_t>(rank.value())]);
    }
  }
  transaction.Persist(job);
}

std::string LeaveOneOut(Transaction& transaction, Job& job, const Fault& fault) {
  const ClusterState& state = transaction.state();
  JobRecord& record = job.record;
  NoteAdvance(record);
  if (fault.culprit || ++record.unexplained < 2 || record.nodes.size() < 2) return fault.reason;
  const Node* chosen = nullptr;
  std::ptrdiff_t most = 0;
  for (const NodeName& name : record.nodes) {
    const Node* const node = state.nodes.Find(name);
    const auto unheard = std::count(record.unheard.begin(), record.unheard.end(), name);
    const bool can_go = node != nullptr && !IsSetAside(node->record) &&
                        CanSpare(state, record, name) && !IsTheOnlyHolder(state, record, name);
    if (!can_go || unheard < most) continue;
    chosen = node;
    most = unheard;
  }
  if (chosen == nullptr) return fault.reason;
  SetAside(transaction, transaction.state().nodes.Edit(chosen->record.name)->record,
           absl::StrCat("job ", record.id.text(), " stopped ", record.unexplained, " times on ",
                        NodeList(record.nodes),
                        " without a new step, and none of these is to "
                        "blame; can they reach each other? The last time: ",
                        fault.reason));
  transaction.Persist(chosen->record);
  job.world.blamed = true;
  return absl::StrCat(fault.reason, "; ", chosen->record.name.text(), " is set aside, ",
                      most > 0 ? "which others do not hear from" : "to try without it");
}

std::vector<NodeName> SetUnfitAside(Transaction& transaction, Job& job, const Fault& fault) {
  const JobRecord& record = job.record;
  std::vector<NodeName> aside = Unfit(job);
  const bool unfit = !aside.empty();
  if (!unfit) aside = Newcomers(transaction.state(), job);
  if (!unfit && fault.culprit) {
    const NodeName& culprit = record.nodes[static_cast<size_t>(fault.culprit->value())];
    if (!Contains(aside, culprit)) return {};
    aside = {culprit};
  }
  for (const NodeName& name : aside) {
    Node* node = transaction.state().nodes.Edit(name);
    if (node == nullptr || IsSetAside(node->record)) continue;
    SetAside(transaction, node->record,
             absl::StrCat("job ", record.id.text(),
                          unfit ? " cannot go on as it is on "
                                : ", which trained on others, did not start on ",
                          NodeList(aside), ": ", fault.reason));
    transaction.Persist(node->record);
  }
  if (!aside.empty()) {
    job.world.blamed = true;
    if (!unfit) job.record.failure.reset();  // it was theirs
  }
  return aside;
}

bool GoOnWithoutUnfit(Transaction& transaction, Job& job, const Fault& fault) {
  const std::vector<NodeName> aside = SetUnfitAside(transaction, job, fault);
  if (aside.empty()) return false;
  job.record.retry_at = transaction.now();
  transaction.Enter(job, JobState::kRecovering,
                    absl::StrCat(fault.reason, "; goes on without ", NodeList(aside),
                                 Unfit(job).empty() ? ", new to the job" : ""));
  return true;
}

void ReturnNodes(Transaction& transaction) {
  NodeTable& nodes = transaction.state().nodes;
  for (const Node& node : nodes) {
    if (!IsSetAside(node.record) || transaction.now() < node.record.set_aside_until) continue;
    nodes.Edit(node.record.name)->record.set_aside_reason.clear();
    transaction.Persist(node.record);
    transaction.QueueChanged();
  }
}

namespace {

// Those that met the same kind of error as the first of them.
std::vector<Rank> FailedRanks(const Job& job) {
  std::vector<Rank> failed;
  absl::StatusCode code = absl::StatusCode::kOk;
  for (size_t i = 0; i < job.world.ranks.size(); ++i) {
    const absl::Status& failure = job.world.ranks[i].failure;
    if (failure.ok() || (!failed.empty() && failure.code() != code)) continue;
    code = failure.code();
    failed.push_back(Rank(static_cast<int64_t>(i)));
  }
  return failed;
}

const TrackedRank& At(const Job& job, Rank rank) {
  return job.world.ranks[static_cast<size_t>(rank.value())];
}

FailureRecord Summary(const Job& job, const std::vector<Rank>& failed) {
  const TrackedRank& first = At(job, failed.front());
  FailureRecord failure{.code = first.failure.code(),
                        .step = first.counters.step,
                        .generation = job.record.generation};
  for (const Rank rank : failed) failure.nodes.push_back(At(job, rank).node);
  return failure;
}

std::string Describe(const Job& job, const std::vector<Rank>& failed) {
  std::string who = RankOnNode(job, failed.front());
  if (failed.size() > 1) absl::StrAppend(&who, " and ", failed.size() - 1, " more");
  if (failed.size() > 1 && failed.size() == job.world.ranks.size()) who = "every rank";
  return absl::StrCat(who, " failed: ", At(job, failed.front()).failure.message());
}

bool CameAgain(const FailureRecord& before, const FailureRecord& now) {
  return before.generation < now.generation && before.code == now.code && before.step == now.step;
}

// Nothing speaks for one machine: several met it, or the job cannot do without the one that did.
bool IsTheJobs(const ClusterState& state, const JobRecord& record, const FailureRecord& before,
               const FailureRecord& now) {
  std::set<NodeName> nodes(before.nodes.begin(), before.nodes.end());
  nodes.insert(now.nodes.begin(), now.nodes.end());
  return nodes.size() > 1 || (IsBadInput(now.code) && !CanSpare(state, record, *nodes.begin()));
}

}  // namespace

bool IsBadInput(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kDataLoss:
      return true;
    default:
      return false;
  }
}

void NoteFailure(Job& job, Rank sender, const WorkerFinished& report) {
  std::vector<Rank> failed;
  for (const Rank rank : report.failed_ranks) {
    const auto size = static_cast<int64_t>(job.world.ranks.size());
    if (rank.value() >= 0 && rank.value() < size) failed.push_back(rank);
  }
  if (failed.empty()) failed.push_back(sender);
  for (const Rank rank : failed) {
    TrackedRank& state = job.world.ranks[static_cast<size_t>(rank.value())];
    if (!state.failure.ok()) continue;
    absl::string_view message = report.reason;
    absl::ConsumePrefix(&message, absl::StrCat("rank ", rank.value(), ": "));
    state.failure = absl::Status(report.code, message);
    state.unfit = report.of_their_nodes;
    state.counters.step = std::max(state.counters.step, report.next_step);
  }
}

bool FailedEverywhere(const Job& job) {
  const std::vector<Rank> failed = FailedRanks(job);
  return !failed.empty() && failed.size() == job.world.ranks.size() &&
         IsBadInput(At(job, failed.front()).failure.code());
}

Judgement JudgeFailure(const ClusterState& state, Job& job) {
  const std::vector<Rank> failed = FailedRanks(job);
  ESPALIER_CHECK(!failed.empty(), "a failure was noted");
  FailureRecord now = Summary(job, failed);
  NoteAdvance(job.record);
  const std::optional<FailureRecord> before = std::exchange(job.record.failure, now);
  Judgement judgement{.ends_job = FailedEverywhere(job),
                      .fault = {.reason = Describe(job, failed), .culprit = failed.front()}};
  const bool again = before && CameAgain(*before, now);
  const bool of_job = again && IsTheJobs(state, job.record, *before, now);
  if (!of_job && LacksWhatItHad(job)) job.world.ranks.front().unfit = true;
  if (!Unfit(job).empty()) {
    judgement.ends_job = false;
    judgement.fault.culprit.reset();
    return judgement;
  }
  const std::vector<NodeName> newcomers = Newcomers(state, job);
  const bool theirs = std::all_of(now.nodes.begin(), now.nodes.end(),
                                  [&](const NodeName& node) { return Contains(newcomers, node); });
  if (!newcomers.empty() && (theirs || judgement.ends_job)) {
    judgement.ends_job = false;
    if (failed.size() > 1) judgement.fault.culprit.reset();
    return judgement;
  }
  if (!again) return judgement;
  absl::StrAppend(&judgement.fault.reason, "; so it did at the same step in generation ",
                  before->generation.value(), ", on ", NodeList(before->nodes));
  judgement.ends_job = judgement.ends_job || of_job;
  return judgement;
}

}  // namespace espalier
