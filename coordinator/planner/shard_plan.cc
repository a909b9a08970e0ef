#include "coordinator/planner/shard_plan.h"

#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/shares.h"

namespace espalier {
namespace {

std::string Explain(const std::vector<int64_t>& shares, const v1::JobSpec& spec) {
  const int32_t batch = spec.train().global_batch();
  if (spec.parallel().shares().empty()) {
    return absl::StrCat("even: ", batch, " sequences over ", shares.size(),
                        shares.size() == 1 ? " rank" : " ranks");
  }
  return absl::StrCat("parallel.shares ", absl::StrJoin(shares, ":"), " of ", batch, " sequences");
}

}  // namespace

ShardPlan FixedPlan(const PlanRequest& request) {
  const auto& given = request.spec.parallel().shares();
  std::vector<int64_t> shares(given.begin(), given.end());
  if (shares.empty()) shares.assign(static_cast<size_t>(request.ranks), 1);
  ESPALIER_CHECK(static_cast<int32_t>(shares.size()) == request.ranks,
                 "shares were checked before");
  ShardPlan plan{.number = request.number, .reason = Explain(shares, request.spec)};
  for (const int64_t part : DivideByShares(request.spec.train().global_batch(), shares)) {
    plan.sequences.push_back(static_cast<int32_t>(part));
  }
  return plan;
}

bool PlansBySpeed(const v1::JobSpec& spec) {
  return spec.parallel().shares().empty() && spec.parallel().plan() != v1::PLAN_MODE_FIXED;
}

bool Samples(const v1::JobSpec& spec) {
  return spec.train().task() == v1::TASK_RFT || spec.train().task() == v1::TASK_GRPO;
}

absl::Status CheckShares(const v1::JobSpec& spec, int32_t ranks) {
  const int32_t batch = spec.train().global_batch();
  if (PlansBySpeed(spec) && batch < ranks) {
    return absl::InvalidArgumentError(absl::StrCat(
        "train.global_batch is ", batch, batch == 1 ? " sequence" : " sequences", " for ", ranks,
        " ranks, so that some would have nothing to do; raise it, or take fewer nodes"));
  }
  const auto& shares = spec.parallel().shares();
  if (shares.empty()) return absl::OkStatus();
  const int64_t total = std::accumulate(shares.begin(), shares.end(), int64_t{0});
  if (shares.size() == ranks && total > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("parallel.shares is [", absl::StrJoin(shares, ", "),
                   "], but needs one entry for each of ", ranks, " ranks and a sum above 0; ",
                   "give as many entries as min_nodes = max_nodes, or leave shares out"));
}

}  // namespace espalier
