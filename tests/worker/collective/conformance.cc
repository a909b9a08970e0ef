#include "tests/worker/collective/conformance.h"

#include <gtest/gtest.h>

#include <cstring>

#include "common/base/random.h"
#include "worker/collective/partition.h"
#include "worker/collective/wire.h"

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

constexpr WireType kWires[] = {WireType::kFp32, WireType::kBf16, WireType::kInt8};

// What arrives of a rank's values and residual, over one wire.
void ThroughTheWire(WireType wire, absl::Span<float> values, absl::Span<float> residual) {
  EncodeInPlace(wire, values, wire == WireType::kInt8 ? residual : absl::Span<float>());
  DecodeInPlace(wire, values);
}

// A world seen from outside: every rank's residual, and the sums of one operation after another.
class ReferenceWorld {
 public:
  ReferenceWorld(WireType wire, int ranks, size_t n)
      : wire_(wire), n_(n), residuals_(ranks, std::vector<float>(n)) {}

  // ((rank 0 + rank 1) + rank 2) + ..., where each piece's owner keeps its own part as it is.
  std::vector<float> Sum(uint64_t seed) {
    std::vector<float> sum(n_);
    const int ranks = static_cast<int>(residuals_.size());
    for (int owner = 0; owner < ranks; ++owner) {
      const Range piece = PieceOf(static_cast<int64_t>(n_), owner, ranks);
      const auto part_of = [&](std::vector<float>& all) {
        return absl::MakeSpan(all).subspan(piece.begin, piece.size());
      };
      for (int rank = 0; rank < ranks; ++rank) {
        std::vector<float> all = Contribution(rank, n_, seed);
        if (rank != owner) ThroughTheWire(wire_, part_of(all), part_of(residuals_[rank]));
        for (int64_t i = piece.begin; i < piece.end; ++i) {
          sum[i] = rank == 0 ? all[i] : sum[i] + all[i];
        }
      }
      if (ranks > 1) ThroughTheWire(wire_, part_of(sum), part_of(residuals_[owner]));
    }
    return sum;
  }
  const std::vector<float>& residual(int rank) const { return residuals_[rank]; }

 private:
  const WireType wire_;
  const size_t n_;
  std::vector<std::vector<float>> residuals_;
};

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

int RankOf(const Collective& collective) { return static_cast<int>(collective.rank().value()); }

void AllReduceAddsInRankOrderToTheBit(Collective& collective) {
  for (const WireType wire : kWires) {
    for (size_t n : {0, 1, 2, 3, 5, 257, 1023, 65537, 400003}) {
      ReferenceWorld reference(wire, collective.world_size(), n);
      std::vector<float> residual(n);
      for (uint64_t run = 0; run < 2; ++run) {
        std::vector<float> values = Contribution(RankOf(collective), n, /*seed=*/n + run);
        const Ticket ticket = collective.StartAllReduce(
            {absl::MakeSpan(values), wire,
             wire == WireType::kInt8 ? absl::MakeSpan(residual) : absl::Span<float>()});
        ASSERT_TRUE(collective.Wait(ticket).ok());
        EXPECT_TRUE(SameBits(values, reference.Sum(n + run))) << n;
        if (wire != WireType::kInt8) continue;
        EXPECT_TRUE(SameBits(residual, reference.residual(RankOf(collective)))) << n;
      }
    }
  }
}

void AResidualIsAddedWhereNobodyElseIs(Collective& collective) {
  if (collective.world_size() > 1) return;
  std::vector<float> values = {1, 2, 3}, residual = {0.5F, 0, -1};
  ASSERT_TRUE(collective
                  .Wait(collective.StartAllReduce(
                      {absl::MakeSpan(values), WireType::kInt8, absl::MakeSpan(residual)}))
                  .ok());
  EXPECT_EQ(values, (std::vector<float>{1.5F, 2, 2}));
  EXPECT_EQ(residual, std::vector<float>(3));
}

void AllReduceTakesLargeOddSizes(Collective& collective) {
  const size_t n = (64 << 20) / sizeof(float) + 7;
  const float ranks = static_cast<float>(collective.world_size());
  const float sum = ranks * (ranks + 1) / 2;
  for (const WireType wire : kWires) {
    std::vector<float> values(n, 1.0F + static_cast<float>(RankOf(collective)));
    ASSERT_TRUE(collective.Wait(collective.StartAllReduce({absl::MakeSpan(values), wire})).ok());
    for (float value : values) {
      ASSERT_NEAR(value, sum, wire == WireType::kInt8 ? 0.02 * sum : 0);
    }
  }
}

void ManyOperationsMayBeInFlight(Collective& collective) {
  std::vector<std::vector<float>> buffers;
  std::vector<Ticket> tickets;
  for (size_t i = 0; i < 20; ++i) {
    buffers.push_back(Contribution(RankOf(collective), i * 1001, /*seed=*/i));
  }
  for (size_t i = 0; i < buffers.size(); ++i) {
    tickets.push_back(collective.StartAllReduce({absl::MakeSpan(buffers[i]), kWires[i % 3]}));
  }
  ASSERT_TRUE(collective.Wait(tickets.back()).ok()) << "later tickets include earlier ones";
  for (size_t i = 0; i < buffers.size(); ++i) {
    ReferenceWorld reference(kWires[i % 3], collective.world_size(), i * 1001);
    EXPECT_TRUE(SameBits(buffers[i], reference.Sum(i))) << i;
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

void NarrowWiresCarryFewerBytes(Collective& collective) {
  if (collective.world_size() == 1) return;
  int64_t fp32 = 0;
  for (const WireType wire : kWires) {
    std::vector<float> values(100000, 1.0F);
    const int64_t before = collective.stats().bytes_sent;
    ASSERT_TRUE(collective.Wait(collective.StartAllReduce({absl::MakeSpan(values), wire})).ok());
    const int64_t sent = collective.stats().bytes_sent - before;
    if (wire == WireType::kFp32) fp32 = sent;
    if (wire == WireType::kBf16) {
      EXPECT_EQ(2 * sent, fp32);
    } else if (wire == WireType::kInt8) {
      EXPECT_LT(3.9 * static_cast<double>(sent), fp32);
    }
  }
}

void StatsCountOperationsAndBytes(Collective& collective) {
  const CollectiveStats before = collective.stats();
  std::vector<float> values(1000, 1.0F);
  ASSERT_TRUE(collective.Wait(collective.StartAllReduce({absl::MakeSpan(values)})).ok());
  const CollectiveStats after = collective.stats();
  EXPECT_EQ(after.completed, before.completed + 1);
  EXPECT_EQ(after.bytes_sent > before.bytes_sent, collective.world_size() > 1);
}

}  // namespace

const std::vector<Rule>& Rules() {
  static const std::vector<Rule>& rules = *new std::vector<Rule>{
      {"AllReduceAddsInRankOrderToTheBit", AllReduceAddsInRankOrderToTheBit},
      {"AResidualIsAddedWhereNobodyElseIs", AResidualIsAddedWhereNobodyElseIs},
      {"NarrowWiresCarryFewerBytes", NarrowWiresCarryFewerBytes},
      {"AllReduceTakesLargeOddSizes", AllReduceTakesLargeOddSizes},
      {"ManyOperationsMayBeInFlight", ManyOperationsMayBeInFlight},
      {"BroadcastCopiesTheRootsBytes", BroadcastCopiesTheRootsBytes},
      {"AllGatherKeepsRankOrder", AllGatherKeepsRankOrder},
      {"StatsCountOperationsAndBytes", StatsCountOperationsAndBytes},
  };
  return rules;
}

}  // namespace espalier::conformance
