#include "tests/worker/collective/conformance.h"

#include <gtest/gtest.h>

#include <cstring>

#include "common/base/random.h"

namespace espalier::conformance {
namespace {

// What rank `rank` contributes: values whose sum depends on the order of addition.
std::vector<float> Contribution(int rank, size_t n, uint64_t seed) {
  SplitMix64 random(seed, rank);
  std::vector<float> values(n);
  for (float& value : values) {
    value = static_cast<float>((random.Uniform() - 0.5) * (random.Next() % 5 == 0 ? 1e6 : 1));
  }
  return values;
}

// ((rank 0 + rank 1) + rank 2) + ...
std::vector<float> ReferenceSum(int ranks, size_t n, uint64_t seed) {
  std::vector<float> sum = Contribution(0, n, seed);
  for (int rank = 1; rank < ranks; ++rank) {
    const std::vector<float> other = Contribution(rank, n, seed);
    for (size_t i = 0; i < n; ++i) sum[i] += other[i];
  }
  return sum;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

int RankOf(const Collective& collective) { return static_cast<int>(collective.rank().value()); }

void AllReduceAddsInRankOrderToTheBit(Collective& collective) {
  const size_t sizes[] = {0, 1, 2, 3, 5, 1023, 65537, 1000003};
  for (size_t n : sizes) {
    for (uint64_t run = 0; run < 2; ++run) {
      std::vector<float> values = Contribution(RankOf(collective), n, /*seed=*/n);
      ASSERT_TRUE(collective.Wait(collective.StartAllReduce(absl::MakeSpan(values))).ok());
      EXPECT_TRUE(SameBits(values, ReferenceSum(collective.world_size(), n, n))) << n;
    }
  }
}

void AllReduceTakesLargeOddSizes(Collective& collective) {
  const size_t n = (64 << 20) / sizeof(float) + 7;
  std::vector<float> values(n, 1.0F + static_cast<float>(RankOf(collective)));
  ASSERT_TRUE(collective.Wait(collective.StartAllReduce(absl::MakeSpan(values))).ok());
  const float ranks = static_cast<float>(collective.world_size());
  for (float value : values) ASSERT_EQ(value, ranks * (ranks + 1) / 2);
}

void ManyOperationsMayBeInFlight(Collective& collective) {
  std::vector<std::vector<float>> buffers;
  std::vector<Ticket> tickets;
  for (size_t i = 0; i < 20; ++i) {
    buffers.push_back(Contribution(RankOf(collective), i * 1001, /*seed=*/i));
  }
  for (std::vector<float>& buffer : buffers) {
    tickets.push_back(collective.StartAllReduce(absl::MakeSpan(buffer)));
  }
  ASSERT_TRUE(collective.Wait(tickets.back()).ok()) << "later tickets include earlier ones";
  for (size_t i = 0; i < buffers.size(); ++i) {
    EXPECT_TRUE(SameBits(buffers[i], ReferenceSum(collective.world_size(), i * 1001, i))) << i;
  }
}

void BroadcastCopiesTheRootsBytes(Collective& collective) {
  for (int root = 0; root < collective.world_size(); ++root) {
    for (size_t n : {0, 1, 77, (1 << 20) - 1, 1 << 20, 9000001}) {
      const std::byte mark = static_cast<std::byte>(root + 1);
      std::vector<std::byte> bytes(n, RankOf(collective) == root ? mark : std::byte{0});
      ASSERT_TRUE(collective.Broadcast(absl::MakeSpan(bytes), Rank(root)).ok());
      EXPECT_EQ(bytes, std::vector<std::byte>(n, mark));
    }
  }
}

void AllGatherKeepsRankOrder(Collective& collective) {
  for (size_t n : {0, 1, 13, 100003}) {
    const std::vector<std::byte> mine(n, static_cast<std::byte>(RankOf(collective)));
    std::vector<std::byte> all(n * collective.world_size());
    ASSERT_TRUE(collective.AllGather(mine, absl::MakeSpan(all)).ok());
    for (size_t i = 0; i < all.size(); ++i) ASSERT_EQ(all[i], static_cast<std::byte>(i / n));
  }
}

void StatsCountOperationsAndBytes(Collective& collective) {
  const CollectiveStats before = collective.stats();
  std::vector<float> values(1000, 1.0F);
  ASSERT_TRUE(collective.Wait(collective.StartAllReduce(absl::MakeSpan(values))).ok());
  const CollectiveStats after = collective.stats();
  EXPECT_EQ(after.completed, before.completed + 1);
  EXPECT_EQ(after.bytes_sent > before.bytes_sent, collective.world_size() > 1);
}

}  // namespace

const std::vector<Rule>& Rules() {
  static const std::vector<Rule>& rules = *new std::vector<Rule>{
      {"AllReduceAddsInRankOrderToTheBit", AllReduceAddsInRankOrderToTheBit},
      {"AllReduceTakesLargeOddSizes", AllReduceTakesLargeOddSizes},
      {"ManyOperationsMayBeInFlight", ManyOperationsMayBeInFlight},
      {"BroadcastCopiesTheRootsBytes", BroadcastCopiesTheRootsBytes},
      {"AllGatherKeepsRankOrder", AllGatherKeepsRankOrder},
      {"StatsCountOperationsAndBytes", StatsCountOperationsAndBytes},
  };
  return rules;
}

}  // namespace espalier::conformance
