#include "worker/rollout/rollout_bytes.h"

#include <gtest/gtest.h>

#include "tests/worker/rollout/sampling_world.h"

namespace espalier {
namespace {

std::vector<Rollout> Some() {
  Rollout one{.prompt = 3, .sample = 1, .ids = {5, 0, 256}, .text = std::string("a\0b", 3)};
  one.stopped = true;
  one.judgement.Add("format", 0.5);
  one.judgement.Add("value", -1.25);
  one.judgement.invalid = "why not";
  return {one, {}, one};
}

TEST(RolloutBytes, ComeBackAsTheyWere) {
  const auto back = UnpackRollouts(PackRollouts(Some()));
  ASSERT_TRUE(back.ok()) << back.status();
  ExpectEqual(*back, Some());
  EXPECT_TRUE(UnpackRollouts("")->empty());
}

TEST(RolloutBytes, WhatIsCutOrAlteredIsRefusedOrOtherwiseWhole) {
  const std::string bytes = PackRollouts(Some());
  size_t refused = 0;
  for (size_t size = 1; size < bytes.size(); ++size) {
    refused += UnpackRollouts(absl::string_view(bytes).substr(0, size)).ok() ? 0 : 1;
  }
  EXPECT_GE(refused, bytes.size() - 3) << "all cuts but those behind a completion";
  for (size_t at = 0; at < bytes.size(); ++at) {
    std::string altered = bytes;
    altered[at] = static_cast<char>(altered[at] ^ 0x80);
    UnpackRollouts(altered).IgnoreError();  // whatever it says, it takes no more memory than that
  }
}

}  // namespace
}  // namespace espalier
