#include "worker/sync/world_proof.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "worker/collective/in_process.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

std::vector<absl::Status> Prove(const std::vector<std::string>& secrets) {
  const auto group = InProcessGroup(static_cast<int>(secrets.size()), absl::Seconds(30));
  std::vector<absl::Status> results(secrets.size());
  std::vector<std::thread> ranks;
  for (size_t i = 0; i < secrets.size(); ++i) {
    ranks.emplace_back([&, i] { results[i] = ProveWorld(*group[i], secrets[i]); });
  }
  for (std::thread& rank : ranks) rank.join();
  return results;
}

TEST(WorldProof, RanksWithOneSecretTakeEachOtherIn) {
  for (const absl::Status& result : Prove({"secret", "secret", "secret"})) {
    EXPECT_TRUE(result.ok()) << result;
  }
  EXPECT_TRUE(Prove({""})[0].ok());
}

TEST(WorldProof, ARankWithoutTheSecretIsNamedByAllOthers) {
  const std::vector<absl::Status> results = Prove({"secret", "guess", "secret"});
  for (const size_t rank : {0, 2}) {
    EXPECT_TRUE(absl::IsAborted(results[rank])) << results[rank];
    EXPECT_THAT(std::string(results[rank].message()), HasSubstr("rank 1 does not know"));
  }
  EXPECT_FALSE(results[1].ok());
}

// As when a worker without a coordinator answers in the place of one that has one.
TEST(WorldProof, NoSecretIsNotTheSecret) {
  const std::vector<absl::Status> results = Prove({"secret", ""});
  EXPECT_FALSE(results[0].ok());
  EXPECT_FALSE(results[1].ok());
}

}  // namespace
}  // namespace espalier
