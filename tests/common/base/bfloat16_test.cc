#include "common/base/bfloat16.h"

#include <gtest/gtest.h>

#include <cmath>

namespace espalier {
namespace {

constexpr uint32_t kValues = 1 << 16;
constexpr uint16_t kSign = 0x8000, kInfinity = 0x7f80, kQuiet = 0x40;

bool IsNan(uint32_t bits) { return (bits & 0x7fff) > kInfinity; }
uint16_t Rounded(uint32_t float_bits) { return ToBfloat16(std::bit_cast<float>(float_bits)); }

TEST(Bfloat16, EveryValueIsItsOwnRounding) {
  for (uint32_t bits = 0; bits < kValues; ++bits) {
    const auto value = static_cast<uint16_t>(bits);
    EXPECT_EQ(ToBfloat16(FromBfloat16(value)), IsNan(bits) ? value | kQuiet : value) << bits;
  }
}

// Between two neighbours: the half goes to the even one, what is beside it to the nearer one. The
// one above the largest number is infinity.
TEST(Bfloat16, RoundsToNearestEvenBetweenAllNeighbours) {
  for (uint32_t bits = 0; bits < kValues; ++bits) {
    if ((bits & 0x7fff) >= kInfinity) continue;
    const uint32_t half = bits << 16 | 0x8000, even = bits + (bits & 1);
    EXPECT_EQ(Rounded(half - 1), bits);
    EXPECT_EQ(Rounded(half), even);
    EXPECT_EQ(Rounded(half + 1), bits + 1);
  }
}

TEST(Bfloat16, NanStaysAQuietNanOfItsSignWhateverItsPayload) {
  for (const uint32_t payload : {1U, 0x7fffU, 0x8000U, 0xffffU, 0x200000U, 0x3fffffU, 0x7fffffU}) {
    for (const uint32_t sign : {0U, 0x80000000U}) {
      const uint16_t rounded = Rounded(sign | 0x7f800000U | payload);
      EXPECT_TRUE(std::isnan(FromBfloat16(rounded))) << payload;
      EXPECT_EQ(rounded & kQuiet, kQuiet) << payload;
      EXPECT_EQ(rounded & kSign, sign >> 16) << payload;
    }
  }
}

}  // namespace
}  // namespace espalier
