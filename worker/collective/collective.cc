#include "worker/collective/collective.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace espalier {

Ticket Collective::StartAllReduce(const Reduction& reduction, PartEnds part_ends) {
  return Start({.kind = Operation::Kind::kAllReduce,
                .reduction = reduction,
                .part_ends = std::move(part_ends)});
}

Ticket Collective::StartReduceScatter(const Reduction& reduction, PartEnds part_ends) {
  return Start({.kind = Operation::Kind::kReduceScatter,
                .reduction = reduction,
                .part_ends = std::move(part_ends)});
}

Ticket Collective::StartAllGather(absl::Span<std::byte> bytes, PartEnds part_ends) {
  return Start(
      {.kind = Operation::Kind::kAllGather, .bytes = bytes, .part_ends = std::move(part_ends)});
}

Ticket Collective::StartBroadcast(absl::Span<std::byte> bytes, Rank root) {
  return Start({.kind = Operation::Kind::kBroadcast, .bytes = bytes, .root = root});
}

absl::Status Collective::Broadcast(absl::Span<std::byte> bytes, Rank root) {
  return Wait(StartBroadcast(bytes, root));
}

absl::Status Collective::AllGather(absl::Span<const std::byte> mine, absl::Span<std::byte> all) {
  ESPALIER_CHECK(all.size() == mine.size() * world_size(), "every rank gathers equal blocks");
  std::copy(mine.begin(), mine.end(), all.begin() + mine.size() * rank().value());
  return Wait(StartAllGather(all));
}

}  // namespace espalier
