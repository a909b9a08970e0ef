// Generation on a Mac: it calls no operator that MPS has not, and none against a rule of
// mac_rules.cc, and says what the processor says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "tests/worker/mac/mac_device.h"
#include "tests/worker/support/training_world.h"
#include "worker/generation/batch_generator.h"

namespace espalier {
namespace {

class GenerationOnAMac : public testing::TestWithParam<Architecture> {};
INSTANTIATE_TEST_SUITE_P(Of, GenerationOnAMac,
                         testing::Values(Architecture::kLlama, Architecture::kGpt2),
                         [](const auto& info) {
                           return info.param == Architecture::kGpt2 ? "Gpt2" : "Llama";
                         });

TEST_P(GenerationOnAMac, BreaksNoRuleAndSaysWhatTheProcessorSays) {
  const MacDevice mac;
  DecoderConfig config = TinyConfig();
  config.architecture = GetParam();
  config.kv_heads = config.heads;
  std::vector<std::map<int64_t, std::vector<int32_t>>> said;
  for (const torch::Device device : {MacDevice::device(), torch::Device(torch::kCPU)}) {
    Parameters parameters = *Parameters::Create(config, {.device = device});
    parameters.Initialize(3, 0.3);
    const Decoder decoder(config, parameters);
    // Of many lengths, in fewer rows than there are, prompts that are shared and in parts.
    BatchGenerator batch =
        *BatchGenerator::Create(decoder, {.rows = 3, .positions = 24, .prompt_part = 2});
    std::map<int64_t, std::vector<int32_t>> of;
    for (const std::vector<int32_t>& prompt :
         std::vector<std::vector<int32_t>>{{1, 2, 3}, {4}, {1, 2, 3}, {1, 2, 9, 8, 7}, {5, 6}}) {
      const auto size = static_cast<int64_t>(prompt.size());
      ASSERT_TRUE(
          batch
              .Add(
                  {.prompt = prompt, .max_new_tokens = 15 - 2 * size, .sample = {.temperature = 0}})
              .ok());
    }
    while (batch.busy()) {
      const auto ended = batch.Turn();
      ASSERT_TRUE(ended.ok()) << ended.status();
      for (const Continued& one : *ended) of[one.id] = one.new_ids;
    }
    said.push_back(of);
  }
  EXPECT_EQ(said[0], said[1]);
  EXPECT_THAT(mac.tally().violations, testing::IsEmpty());
}

TEST_P(GenerationOnAMac, TokensAndPromptsOfOtherLengthsShareTheirGraphs) {
  MacDevice mac;
  DecoderConfig config = TinyConfig();
  config.architecture = GetParam();
  config.kv_heads = config.heads;
  config.max_position_embeddings = 256;
  Parameters parameters = *Parameters::Create(config, {.device = MacDevice::device()});
  parameters.Initialize(3, 0.3);
  const Decoder decoder(config, parameters);
  BatchGenerator batch = *BatchGenerator::Create(decoder, {.rows = 1, .positions = 200});
  std::vector<size_t> graphs;
  for (const int32_t length : {40, 50}) {
    Sequence sequence{.prompt = std::vector<int32_t>(static_cast<size_t>(length), length % 40),
                      .max_new_tokens = 125 - length};
    sequence.on_token = [&](int32_t) {
      graphs.push_back(mac.tally().graphs.size());
      return true;
    };
    ASSERT_TRUE(batch.Add(sequence).ok());
    while (batch.busy()) ASSERT_TRUE(batch.Turn().ok());
  }
  ASSERT_EQ(graphs.size(), 85u + 75u);
  EXPECT_EQ(graphs[40], graphs.back());
  EXPECT_THAT(mac.tally().violations, testing::IsEmpty());
}

// What goes up follows the queue: a copy that waits takes as long as a layer.
TEST(OnAMacToo, ATokenWaitsForTheDeviceOnce) {
  MacDevice mac;
  const DecoderConfig config = TinyConfig();
  Parameters parameters = *Parameters::Create(config, {.device = MacDevice::device()});
  parameters.Initialize(3, 0.3);
  const Decoder decoder(config, parameters);
  BatchGenerator batch =
      *BatchGenerator::Create(decoder, {.rows = 1, .positions = 24, .prompt_part = 2});
  std::vector<int64_t> waits, waits_up;
  for (const std::vector<int32_t>& prompt : {std::vector<int32_t>{6}, {1, 2, 3, 4, 5}}) {
    Sequence sequence{.prompt = prompt, .max_new_tokens = 6};
    sequence.on_token = [&](int32_t) {
      waits.push_back(mac.tally().waits);
      waits_up.push_back(mac.tally().waits_up);
      mac.Restart();
      return true;
    };
    ASSERT_TRUE(batch.Add(sequence).ok());
    while (batch.busy()) ASSERT_TRUE(batch.Turn().ok());
  }
  ASSERT_EQ(waits.size(), 12u);
  waits_up.front() = 0;  // tables are made
  EXPECT_THAT(waits, testing::Each(1)) << "for its logits";
  EXPECT_THAT(waits_up, testing::Each(0));
}

}  // namespace
}  // namespace espalier
