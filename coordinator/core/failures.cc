#include "coordinator/core/failures.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/check.h"
#include "coordinator/core/facts.h"
#include "coordinator/core/faults.h"

namespace espalier {
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
  const std::optional<FailureRecord> before = std::exchange(job.record.failure, now);
  Judgement judgement{.ends_job = FailedEverywhere(job),
                      .fault = {.reason = Describe(job, failed), .culprit = failed.front()}};
  if (!before || !CameAgain(*before, now)) return judgement;
  absl::StrAppend(&judgement.fault.reason, "; so it did at the same step in generation ",
                  before->generation.value(), ", on ", NodeList(before->nodes));
  judgement.ends_job = judgement.ends_job || IsTheJobs(state, job.record, *before, now);
  return judgement;
}

}  // namespace espalier
