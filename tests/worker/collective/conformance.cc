#include "tests/worker/collective/conformance.h"

#include <gtest/gtest.h>

#include <algorithm>
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
  ReferenceWorld(WireType wire, const PartEnds& part_ends)
      : wire_(wire),
        part_ends_(part_ends),
        n_(part_ends.back()),
        residuals_(part_ends.size(), std::vector<float>(n_)) {}

  // ((rank 0 + rank 1) + rank 2) + ..., where each part's owner keeps what it adds as it is.
  std::vector<float> Sum(uint64_t seed) {
    std::vector<float> sum(n_);
    const int ranks = static_cast<int>(residuals_.size());
    for (int owner = 0; owner < ranks; ++owner) {
      const Range part = PartOf(part_ends_, owner);
      const auto part_of = [&](std::vector<float>& all) {
        return absl::MakeSpan(all).subspan(part.begin, part.size());
      };
      for (int rank = 0; rank < ranks; ++rank) {
        std::vector<float> all = Contribution(rank, n_, seed);
        if (rank != owner) ThroughTheWire(wire_, part_of(all), part_of(residuals_[rank]));
        for (int64_t i = part.begin; i < part.end; ++i) {
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
  const PartEnds part_ends_;
  const size_t n_;
  std::vector<std::vector<float>> residuals_;
};

// Ways to cut n elements up: everything to one rank, to each some, to some nothing.
std::vector<PartEnds> UnevenParts(size_t n, int ranks) {
  const auto size = static_cast<int64_t>(n);
  PartEnds cut(ranks), gaps(ranks);
  SplitMix64 random(n, ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    cut[rank] = static_cast<int64_t>(random.Below(n + 1));
    gaps[rank] = EqualPart(size, rank / 2, (ranks + 1) / 2).end;
  }
  std::sort(cut.begin(), cut.end());
  cut.back() = gaps.back() = size;
  return {AllOf(size, 0, ranks), AllOf(size, ranks - 1, ranks), cut, gaps};
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

int RankOf(const Collective& collective) { return static_cast<int>(collective.rank().value()); }

void AllReduceAddsInRankOrderToTheBit(Collective& collective) {
  for (const WireType wire : kWires) {
    for (size_t n : {0, 1, 2, 3, 5, 257, 1023, 65537, 400003}) {
      ReferenceWorld reference(wire, EqualParts(static_cast<int64_t>(n), collective.world_size()));
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

// Both sums over the same parts, twice, so that what int8 left out of the first is in the second.
void SumOverParts(Collective& collective, WireType wire, const PartEnds& ends) {
  const auto n = static_cast<size_t>(ends.back());
  const int rank = RankOf(collective);
  ReferenceWorld reference(wire, ends);
  std::vector<float> residuals[2] = {std::vector<float>(n), std::vector<float>(n)};
  const auto residual = [&](int of) {
    return wire == WireType::kInt8 ? absl::MakeSpan(residuals[of]) : absl::Span<float>();
  };
  for (uint64_t run = 0; run < 2; ++run) {
    std::vector<float> all = Contribution(rank, n, n + run), scattered = all;
    collective.StartAllReduce({absl::MakeSpan(all), wire, residual(0)}, ends);
    ASSERT_TRUE(collective
                    .Wait(collective.StartReduceScatter(
                        {absl::MakeSpan(scattered), wire, residual(1)}, ends))
                    .ok());
    const std::vector<float> sum = reference.Sum(n + run);
    EXPECT_TRUE(SameBits(all, sum)) << n;
    for (int64_t i = PartOf(ends, rank).begin; i < PartOf(ends, rank).end; ++i) {
      ASSERT_EQ(scattered[i], sum[i]) << i << " of " << n;
    }
    if (wire != WireType::kInt8) continue;
    EXPECT_TRUE(SameBits(residuals[0], reference.residual(rank))) << n;
    EXPECT_TRUE(SameBits(residuals[1], reference.residual(rank))) << n;
  }
}

void ReduceScatterGivesEveryPartAsAllReduceDoes(Collective& collective) {
  for (const WireType wire : kWires) {
    for (size_t n : {0, 1, 2, 5, 1023, 70001}) {
      SumOverParts(collective, wire, EqualParts(static_cast<int64_t>(n), collective.world_size()));
      for (const PartEnds& ends : UnevenParts(n, collective.world_size())) {
        SumOverParts(collective, wire, ends);
      }
    }
  }
}

std::byte ByteOf(int owner, int64_t i) {
  return static_cast<std::byte>(owner * 101 + i * 7 + i / 255);
}

void AllGatherBringsEveryPartToAll(Collective& collective) {
  for (size_t n : {0, 1, 2, 13, 100003, 3000001}) {
    std::vector<PartEnds> cuts = UnevenParts(n, collective.world_size());
    cuts.push_back({});
    for (const PartEnds& given : cuts) {
      const PartEnds ends =
          given.empty() ? EqualParts(static_cast<int64_t>(n), collective.world_size()) : given;
      std::vector<std::byte> bytes(n), wanted(n);
      for (int owner = 0; owner < collective.world_size(); ++owner) {
        for (int64_t i = PartOf(ends, owner).begin; i < PartOf(ends, owner).end; ++i) {
          wanted[i] = ByteOf(owner, i);
          if (owner == RankOf(collective)) bytes[i] = wanted[i];
        }
      }
      ASSERT_TRUE(collective.Wait(collective.StartAllGather(absl::MakeSpan(bytes), given)).ok());
      EXPECT_TRUE(bytes == wanted) << n;
    }
  }
}

void ReduceScatterAndAllGatherMakeAnAllReduce(Collective& collective) {
  for (const PartEnds& ends : UnevenParts(200001, collective.world_size())) {
    std::vector<float> whole = Contribution(RankOf(collective), 200001, /*seed=*/1), halves = whole;
    collective.StartAllReduce({absl::MakeSpan(whole)});
    PartEnds byte_ends = ends;
    for (int64_t& end : byte_ends) end *= sizeof(float);
    collective.StartReduceScatter({absl::MakeSpan(halves)}, ends);
    ASSERT_TRUE(collective
                    .Wait(collective.StartAllGather({reinterpret_cast<std::byte*>(halves.data()),
                                                     halves.size() * sizeof(float)},
                                                    byte_ends))
                    .ok());
    EXPECT_TRUE(SameBits(whole, halves));
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

// Starts 40 operations, those of different kinds in turn, before it waits for any.
void ManyOperationsMayBeInFlight(Collective& collective) {
  const int ranks = collective.world_size(), rank = RankOf(collective);
  std::vector<std::vector<float>> sums;
  std::vector<std::vector<std::byte>> copies;
  Ticket last;
  for (int64_t i = 0; i < 20; ++i) {
    sums.push_back(Contribution(rank, i * 1001, /*seed=*/i));
    copies.emplace_back(i * 20011, static_cast<std::byte>(rank));
  }
  for (int64_t i = 0; i < 20; ++i) {
    const Reduction reduction = {absl::MakeSpan(sums[i]), kWires[i % 3]};
    if (i % 2 == 0) {
      collective.StartAllReduce(reduction);
      last = collective.StartBroadcast(absl::MakeSpan(copies[i]), Rank(i % ranks));
    } else {
      collective.StartReduceScatter(reduction);
      last = collective.StartAllGather(absl::MakeSpan(copies[i]));
    }
  }
  ASSERT_TRUE(collective.Wait(last).ok()) << "later tickets include earlier ones";
  for (int64_t i = 0; i < 20; ++i) {
    const PartEnds ends = EqualParts(i * 1001, ranks), byte_ends = EqualParts(i * 20011, ranks);
    const std::vector<float> sum = ReferenceWorld(kWires[i % 3], ends).Sum(i);
    const Range summed = i % 2 == 0 ? Range{0, i * 1001} : PartOf(ends, rank);
    EXPECT_TRUE(std::equal(sum.begin() + summed.begin, sum.begin() + summed.end,
                           sums[i].begin() + summed.begin))
        << i;
    for (int owner = 0; owner < ranks; ++owner) {
      const Range part = PartOf(byte_ends, owner);
      const auto from = static_cast<std::byte>(i % 2 == 0 ? i % ranks : owner);
      EXPECT_EQ(std::count(copies[i].begin() + part.begin, copies[i].begin() + part.end, from),
                part.size())
          << i;
    }
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

void AllGatherOfEqualBlocksKeepsRankOrder(Collective& collective) {
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

void QuiesceWaitsForAllThatWasStarted(Collective& collective) {
  std::vector<float> values(100000, 1.0F);
  std::vector<std::byte> bytes(100000, static_cast<std::byte>(RankOf(collective)));
  const Ticket sum = collective.StartAllReduce({absl::MakeSpan(values)});
  const Ticket copy = collective.StartBroadcast(absl::MakeSpan(bytes), Rank(0));
  ASSERT_TRUE(collective.Quiesce().ok());
  EXPECT_EQ(values, std::vector<float>(100000, static_cast<float>(collective.world_size())));
  EXPECT_EQ(bytes, std::vector<std::byte>(100000));
  EXPECT_TRUE(collective.Wait(sum).ok());
  EXPECT_TRUE(collective.Wait(copy).ok());
}

// Two values are one integer: none may be cut in half, and sums go around at 2^64.
void IntegersAreAddedExactlyWhateverTheirNumber(Collective& collective) {
  const auto number = [](int rank, size_t i) {
    return SplitMix64(i, static_cast<uint64_t>(rank)).Next();
  };
  for (const size_t n : {0, 1, 2, 3, 5, 129, 1023, 70001}) {
    std::vector<uint64_t> integers(n);
    for (size_t i = 0; i < n; ++i) integers[i] = number(RankOf(collective), i);
    const absl::Span<float> values(reinterpret_cast<float*>(integers.data()), 2 * n);
    const Ticket ticket = collective.StartAllReduce({.values = values, .wire = WireType::kInt64});
    ASSERT_TRUE(collective.Wait(ticket).ok());
    for (size_t i = 0; i < n; ++i) {
      uint64_t sum = 0;
      for (int rank = 0; rank < collective.world_size(); ++rank) sum += number(rank, i);
      ASSERT_EQ(integers[i], sum) << i << " of " << n;
    }
  }
}

}  // namespace

const std::vector<Rule>& Rules() {
  static const std::vector<Rule>& rules = *new std::vector<Rule>{
      {"AllReduceAddsInRankOrderToTheBit", AllReduceAddsInRankOrderToTheBit},
      {"ReduceScatterGivesEveryPartAsAllReduceDoes", ReduceScatterGivesEveryPartAsAllReduceDoes},
      {"AllGatherBringsEveryPartToAll", AllGatherBringsEveryPartToAll},
      {"ReduceScatterAndAllGatherMakeAnAllReduce", ReduceScatterAndAllGatherMakeAnAllReduce},
      {"AResidualIsAddedWhereNobodyElseIs", AResidualIsAddedWhereNobodyElseIs},
      {"NarrowWiresCarryFewerBytes", NarrowWiresCarryFewerBytes},
      {"AllReduceTakesLargeOddSizes", AllReduceTakesLargeOddSizes},
      {"ManyOperationsMayBeInFlight", ManyOperationsMayBeInFlight},
      {"IntegersAreAddedExactlyWhateverTheirNumber", IntegersAreAddedExactlyWhateverTheirNumber},
      {"BroadcastCopiesTheRootsBytes", BroadcastCopiesTheRootsBytes},
      {"AllGatherOfEqualBlocksKeepsRankOrder", AllGatherOfEqualBlocksKeepsRankOrder},
      {"StatsCountOperationsAndBytes", StatsCountOperationsAndBytes},
      {"QuiesceWaitsForAllThatWasStarted", QuiesceWaitsForAllThatWasStarted},
  };
  return rules;
}

}  // namespace espalier::conformance
