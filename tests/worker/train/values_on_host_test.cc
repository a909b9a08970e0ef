// Where a device shares the machine's memory (MPS) what is trained lies on the host and the device
// has copies: the same bits as where all of it is one, here with the processor as that device.
#include <gtest/gtest.h>

#include "tests/worker/support/test_folder.h"
#include "tests/worker/support/training_world.h"

namespace espalier {
namespace {

struct Kind {
  const char* name;
  v1::Precision precision;
  bool tied;
  v1::GradientDtype wire = v1::GRADIENT_DTYPE_FP32;
  bool reproducible = false;
  std::vector<std::string> frozen = {};
};

const Kind kKinds[] = {
    {"Fp32", v1::PRECISION_FP32, false},
    {"Fp32Tied", v1::PRECISION_FP32, true},
    {"Bf16", v1::PRECISION_BF16, false},
    {"Bf16Tied", v1::PRECISION_BF16, true},
    {"OfGradientsInInt8", v1::PRECISION_FP32, false, v1::GRADIENT_DTYPE_INT8},
    {"Reproducible", v1::PRECISION_FP32, false, v1::GRADIENT_DTYPE_FP32, true},
    {"ReproducibleTied", v1::PRECISION_BF16, true, v1::GRADIENT_DTYPE_FP32, true},
    {"TableFrozen",
     v1::PRECISION_BF16,
     false,
     v1::GRADIENT_DTYPE_FP32,
     false,
     {"model.embed_tokens.weight", "lm_head.weight", "model.layers.*.mlp.*",
      "model.layers.*.self_attn.*"}},
};

WorldOptions OptionsOf(const Kind& kind, int ranks, const TestFolder& folder) {
  WorldOptions options;
  options.ranks = ranks;
  options.tied = kind.tied;
  options.validation = true;
  options.spec = TinySpec(10);
  options.spec.mutable_train()->set_precision(kind.precision);
  options.spec.mutable_train()->set_reproducible(kind.reproducible);
  options.spec.mutable_train()->mutable_freeze()->Assign(kind.frozen.begin(), kind.frozen.end());
  options.spec.mutable_parallel()->set_gradient_dtype(kind.wire);
  options.spec.mutable_model()->set_dropout(0.1);
  options.spec.mutable_evaluate()->set_every_steps(4);
  options.spec.mutable_checkpoint()->set_every_steps(3);
  options.checkpoints = folder.path();
  return options;
}

class ValuesOnHost : public testing::TestWithParam<std::tuple<int, int>> {};
INSTANTIATE_TEST_SUITE_P(Kinds, ValuesOnHost,
                         testing::Combine(testing::Range(0, 8), testing::Values(1, 2, 3)),
                         [](const auto& info) {
                           return std::string(kKinds[std::get<0>(info.param)].name) +
                                  std::to_string(std::get<1>(info.param));
                         });

TEST_P(ValuesOnHost, AreTheSameBitsAsWhereAllIsOneMemory) {
  const Kind& kind = kKinds[std::get<0>(GetParam())];
  const TestFolder here, apart;
  WorldOptions options = OptionsOf(kind, std::get<1>(GetParam()), here);
  const std::vector<RankResult> expected = TrainWorld(options);
  options.checkpoints = apart.path();
  options.values_on_host = true;
  const std::vector<RankResult> found = TrainWorld(options);
  for (size_t rank = 0; rank < found.size(); ++rank) {
    ASSERT_TRUE(found[rank].outcome.ok()) << found[rank].outcome.status();
    EXPECT_TRUE(found[rank].replica->parameters().values_on_host());
    EXPECT_EQ(found[rank].fingerprint, expected[rank].fingerprint);
    EXPECT_EQ(found[rank].losses, expected[rank].losses);
    ASSERT_EQ(found[rank].client->evaluations().size(),
              expected[rank].client->evaluations().size());
    for (size_t i = 0; i < found[rank].client->evaluations().size(); ++i) {
      EXPECT_EQ(found[rank].client->evaluations()[i].loss(),
                expected[rank].client->evaluations()[i].loss());
    }
  }
}

// A world of one kind goes on from the checkpoint of the other.
TEST_P(ValuesOnHost, GoOnFromWhatTheOtherKindHasWritten) {
  const Kind& kind = kKinds[std::get<0>(GetParam())];
  const TestFolder whole, parts;
  WorldOptions options = OptionsOf(kind, std::get<1>(GetParam()), whole);
  const uint64_t expected = TrainWorld(options)[0].fingerprint;
  options.checkpoints = parts.path();
  options.values_on_host = true;
  options.script = StopAfter(6, StopKeeps::kCheckpoint);
  EXPECT_EQ(*TrainWorld(options)[0].outcome, v1::OUTCOME_STOPPED);
  options.script = {};
  options.values_on_host = false;
  const std::vector<RankResult> resumed = TrainWorld(options);
  EXPECT_GT(resumed[0].start.step, Step(4));
  EXPECT_EQ(resumed[0].fingerprint, expected);
}

TEST(ValuesOnHostMemory, IsWhatTheEstimateSays) {
  for (const auto type : {torch::kFloat, torch::kBFloat16}) {
    Parameters::Options options = Parameters::ForTraining(torch::kCPU, type);
    options.values_on_host = true;
    const DecoderConfig config = TinyConfig();
    Parameters parameters = *Parameters::Create(config, options);
    int64_t bytes = 0;
    for (const FlatTensor* flat : {&parameters.flat(), &parameters.flat_gradient(),
                                   &parameters.summed_gradient(), &parameters.flat_copy()}) {
      bytes += flat->nbytes();
    }
    for (const Parameter& parameter : parameters.trained()) {
      if (type == torch::kFloat || !parameter.shape.read_in_full()) continue;
      bytes += (parameter.shape.is_norm() ? 8 : 4) * parameter.size;
    }
    EXPECT_EQ(Parameters::SizeOf(config, options).bytes, bytes);
  }
}

}  // namespace
}  // namespace espalier
