#include "worker/train/plan.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "common/base/shares.h"

namespace espalier {
namespace {

absl::Status CountError(absl::string_view key, int count, int world_size) {
  return absl::InvalidArgumentError(
      absl::StrCat(key, " lists ", count, " values and there are ", world_size,
                   " ranks; give one value per rank, or leave it to the default"));
}

}  // namespace

absl::StatusOr<v1::ShardPlan> PlanFromShares(const v1::JobSpec& spec, int world_size) {
  std::vector<int64_t> shares(spec.parallel().shares().begin(), spec.parallel().shares().end());
  if (shares.empty()) shares.assign(world_size, 1);
  if (static_cast<int>(shares.size()) != world_size) {
    return CountError("parallel.shares", static_cast<int>(shares.size()), world_size);
  }
  const int64_t total = std::accumulate(shares.begin(), shares.end(), int64_t{0});
  if (total <= 0) {
    return absl::InvalidArgumentError("parallel.shares are all 0; one must be larger");
  }
  v1::ShardPlan plan;
  for (const int64_t part : DivideByShares(spec.train().global_batch(), shares)) {
    plan.add_sequences(static_cast<int32_t>(part));
  }
  plan.set_reason(spec.parallel().shares().empty() ? "even shares" : "parallel.shares of the job");
  return plan;
}

RolloutLimit SamplingLimit(const v1::Directive& directive, const v1::JobSpec& spec, Rank rank) {
  RolloutLimit limit;
  const auto place = static_cast<int>(rank.value());
  if (place < directive.limits_size()) {
    limit = {directive.limits(place).part(), directive.limits(place).largest_share()};
  }
  const auto& shares = spec.parallel().shares();
  if (place < shares.size()) {
    const double all = std::accumulate(shares.begin(), shares.end(), 0.0);
    limit.largest_share = std::min(limit.largest_share, shares[place] / all);
  }
  return limit;
}

absl::StatusOr<std::optional<int64_t>> MicroBatchOf(const v1::BatchSpec& spec, Rank rank,
                                                    int world_size) {
  const int count = spec.micro_batch_size();
  if (count == 0) return std::nullopt;
  if (count != 1 && count != world_size) return CountError("batch.micro_batch", count, world_size);
  return spec.micro_batch(count == 1 ? 0 : static_cast<int>(rank.value()));
}

std::vector<int64_t> MicroBatchSizes(int64_t shard, int64_t micro_batch) {
  const int64_t passes = (shard + micro_batch - 1) / micro_batch;
  std::vector<int64_t> sizes;
  for (int64_t i = 0; i < passes; ++i) {
    sizes.push_back(shard * (i + 1) / passes - shard * i / passes);
  }
  return sizes;
}

}  // namespace espalier
