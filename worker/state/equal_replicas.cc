#include "worker/state/equal_replicas.h"

#include <algorithm>
#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "worker/tensor/torch_compat.h"

namespace espalier {
namespace {

// Those that differ from more than half of all; every rank when none is of so many.
std::vector<int32_t> OddRanks(const std::vector<uint64_t>& prints) {
  std::map<uint64_t, size_t> votes;
  for (const uint64_t print : prints) ++votes[print];
  const auto most = std::max_element(votes.begin(), votes.end(), [](const auto& a, const auto& b) {
    return a.second < b.second;
  });
  const bool majority = most->second * 2 > prints.size();
  std::vector<int32_t> odd;
  for (size_t rank = 0; rank < prints.size(); ++rank) {
    if (!majority || prints[rank] != most->first) odd.push_back(static_cast<int32_t>(rank));
  }
  return odd;
}

}  // namespace

absl::Status CheckReplicasEqual(const RankContext& context, Replica& replica) {
  if (context.collective.world_size() == 1) return absl::OkStatus();
  uint64_t mine = 0;
  RETURN_IF_ERROR(RunTogether(context, [&] {
    return CatchTorch("hashing the replica", [&] { mine = replica.Fingerprint(); });
  }));
  ASSIGN_OR_RETURN(const std::vector<uint64_t> all, GatherValues(context.collective, mine));
  if (std::all_of(all.begin(), all.end(), [&](uint64_t print) { return print == all[0]; })) {
    return absl::OkStatus();
  }
  const std::vector<int32_t> odd = OddRanks(all);
  return WithFailedRanks(
      absl::InternalError(absl::StrCat(
          "the ranks do not hold the same bits any more after step ", replica.step().value(), ": ",
          odd.size() == all.size()
              ? "which one is wrong cannot be told"
              : absl::StrCat("rank ", absl::StrJoin(odd, ", "), " differs from the others"),
          "; no checkpoint is written of it, and what is in memory is not used again")),
      odd);
}

}  // namespace espalier
