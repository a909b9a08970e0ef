#include "tests/bench/token_ids.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <sstream>

#include "absl/strings/str_cat.h"

namespace espalier::bench {
namespace {

std::string OutputOf(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "r");
  std::string output;
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) output += static_cast<char>(c);
  EXPECT_EQ(pclose(pipe), 0) << command;
  return output;
}

std::vector<int64_t> IdsOfThePeer(int64_t count, int64_t vocabulary, uint64_t seed) {
  std::istringstream output(
      OutputOf(absl::StrCat("python3 '", ESPALIER_SOURCE_DIR, "/tests/bench/peers/token_ids.py' ",
                            count, " ", vocabulary, " ", seed)));
  std::vector<int64_t> ids;
  for (int64_t id; output >> id;) ids.push_back(id);
  return ids;
}

TEST(TokenIds, ThePeerDrawsTheSame) {
  for (const int64_t vocabulary : {1, 258, 8192, 50304}) {
    EXPECT_EQ(TokenIds(500, vocabulary, 7), IdsOfThePeer(500, vocabulary, 7)) << vocabulary;
  }
}

TEST(TokenIds, AreBelowTheVocabularyAndAsFrequentAsWords) {
  const std::vector<int64_t> ids = TokenIds(20000, 1000, 1);
  EXPECT_GE(*std::min_element(ids.begin(), ids.end()), 0);
  EXPECT_LT(*std::max_element(ids.begin(), ids.end()), 1000);
  // 1 / (1 + 1/2 + ... + 1/1000) = 0.1336 of them are the first id, half as many the second.
  EXPECT_NEAR(std::count(ids.begin(), ids.end(), 0), 2672, 200);
  EXPECT_NEAR(std::count(ids.begin(), ids.end(), 1), 1336, 150);
}

TEST(TokenIds, OtherIdsHaveAnotherDigest) {
  EXPECT_EQ(DigestOf(TokenIds(100, 258, 1)), DigestOf(TokenIds(100, 258, 1)));
  EXPECT_NE(DigestOf(TokenIds(100, 258, 1)), DigestOf(TokenIds(100, 258, 2)));
}

}  // namespace
}  // namespace espalier::bench
