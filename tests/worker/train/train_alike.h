// TrainAlike and ExpectNearly: worlds whose ranks all end well with equal replicas, and losses of
// two such worlds. Used by frozen_test.cc, lora_test.cc and packed_training_test.cc. One thread.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "tests/worker/support/training_world.h"

namespace espalier {

inline std::vector<RankResult> TrainAlike(const WorldOptions& options) {
  std::vector<RankResult> results = TrainWorld(options);
  for (const RankResult& result : results) {
    EXPECT_TRUE(result.outcome.ok()) << result.outcome.status();
    EXPECT_EQ(result.fingerprint, results[0].fingerprint);
  }
  return results;
}

inline void ExpectNearly(const std::vector<double>& losses, const std::vector<double>& expected) {
  ASSERT_EQ(losses.size(), expected.size());
  for (size_t i = 0; i < losses.size(); ++i) {
    EXPECT_NEAR(losses[i], expected[i], 1e-5 * expected[i]) << "step " << i;
  }
}

}  // namespace espalier
