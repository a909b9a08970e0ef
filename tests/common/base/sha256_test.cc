#include "common/base/sha256.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

// FIPS 180-4, example of one block.
TEST(Sha256, IsThatOfTheStandard) {
  EXPECT_EQ(Sha256Hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Sha256OfFile, IsGivenUpBeforeTheNextMegabyte) {
  const std::string path = absl::StrCat(testing::TempDir(), "/sha256_test-", getpid());
  std::ofstream(path).close();
  std::filesystem::resize_file(path, 5 << 20);
  int64_t read = 0;
  const auto digest = Sha256OfFile(
      path, [&](int64_t bytes) { read += bytes; }, [&] { return read >= 2 << 20; });
  EXPECT_TRUE(absl::IsCancelled(digest.status())) << digest.status();
  EXPECT_EQ(read, 2 << 20);
  EXPECT_EQ(Sha256OfFile(path)->bytes, 5 << 20);
  std::filesystem::remove(path);
}

// RFC 4231, test case 2.
TEST(HmacSha256, IsThatOfTheStandard) {
  EXPECT_EQ(HmacSha256Hex("Jefe", "what do ya want for nothing?"),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
}

TEST(RandomHex, HasTheLengthAskedForAndNeverRepeats) {
  std::set<std::string> seen;
  for (int i = 0; i < 1000; ++i) {
    const std::string random = RandomHex(16);
    EXPECT_EQ(random.size(), 32u);
    EXPECT_TRUE(seen.insert(random).second);
  }
}

TEST(Secrets, SecretsAreTheSameWhole) {
  EXPECT_TRUE(SameSecret("abc", "abc"));
  EXPECT_FALSE(SameSecret("abc", "abd"));
  EXPECT_FALSE(SameSecret("abc", "abcd"));
  EXPECT_FALSE(SameSecret("", "a"));
}

}  // namespace
}  // namespace espalier
