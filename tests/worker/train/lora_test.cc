// Adapters of low rank: only they are trained, exchanged and in checkpoints, which PEFT reads; the
// same comes out on one rank and on two, kept or resumed.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "nlohmann/json.hpp"
#include "tests/worker/support/test_folder.h"
#include "tests/worker/support/training_world.h"
#include "tests/worker/train/train_alike.h"
#include "worker/memory/memory_advice.h"
#include "worker/model/adapter_files.h"
#include "worker/model/pretrained.h"
#include "worker/state/checkpoint_store.h"

namespace espalier {
namespace {

WorldOptions LoraWorld(int ranks, int64_t steps, const std::string& folder) {
  WorldOptions options;
  options.ranks = ranks;
  options.spec = TinySpec(steps);
  v1::LoraSpec& lora = *options.spec.mutable_train()->mutable_lora();
  lora.set_rank(4);
  lora.set_alpha(16);
  lora.set_dropout(0.1);
  options.spec.mutable_train()->mutable_schedule()->set_learning_rate(1e-2);
  options.spec.mutable_batch()->add_micro_batch(4);
  options.checkpoints = folder;
  return options;
}

TEST(LoraTraining, TwoRanksTrainWhatOneDoes) {
  constexpr int64_t kSteps = 50;
  for (const bool recompute : {false, true}) {
    const TestFolder one, two;
    const auto world = [&](int ranks, const TestFolder& folder) {
      WorldOptions options = LoraWorld(ranks, kSteps, folder.path());
      if (recompute) *options.spec.mutable_train()->mutable_recompute(0) = "all";
      if (ranks == 2) {
        options.spec.mutable_parallel()->add_shares(3);
        options.spec.mutable_parallel()->add_shares(1);
      }
      return options;
    };
    const std::vector<double> expected = TrainAlike(world(1, one))[0].losses;
    ASSERT_EQ(expected.size(), kSteps);
    EXPECT_LT(expected.back(), 0.95 * expected.front()) << "it does not learn";
    ExpectNearly(TrainAlike(world(2, two))[0].losses, expected);
  }
}

TEST(LoraTraining, TheModelKeepsItsValuesAndTakesNoState) {
  const TestFolder folder;
  const std::vector<RankResult> results = TrainAlike(LoraWorld(2, 3, folder.path()));
  Replica& replica = *results[0].replica;
  Parameters initial = *Parameters::Create(replica.config(), Parameters::Options{});
  initial.Initialize(TinySpec(1).train().seed(), replica.config().initializer_range);
  for (const Parameter& parameter : replica.parameters().all()) {
    EXPECT_EQ(parameter.trained, parameter.shape.is_adapter()) << parameter.shape.name;
    if (parameter.trained) continue;
    EXPECT_FALSE(parameter.leaf.requires_grad()) << parameter.shape.name;
    EXPECT_TRUE(torch::equal(parameter.value, initial.Get(parameter.shape.name)))
        << parameter.shape.name;
  }
  const int64_t elements = replica.parameters().trained_elements();
  EXPECT_EQ(replica.optimizer().moments().first().numel(), elements);
  EXPECT_EQ(replica.parameters().flat_gradient().numel(), elements);
}

TEST(LoraTraining, AReducedPrecisionKeepsTheModelInItAndAdaptersInFull) {
  const TestFolder folder;
  WorldOptions options = LoraWorld(1, 3, folder.path());
  options.spec.mutable_train()->set_precision(v1::PRECISION_BF16);
  const std::vector<RankResult> results = TrainAlike(options);
  for (const Parameter& parameter : results[0].replica->parameters().all()) {
    const bool matrix = parameter.shape.role == ParameterRole::kMatrix;
    if (matrix) {
      EXPECT_EQ(parameter.value.scalar_type(), torch::kBFloat16);
    }
    if (parameter.trained) {
      EXPECT_EQ(parameter.value.scalar_type(), torch::kFloat);
    }
  }
}

TEST(LoraTraining, ACheckpointIsAnAdapterAsPeftReadsItAndAModel) {
  const TestFolder folder;
  const std::vector<RankResult> results = TrainAlike(LoraWorld(1, 3, folder.path()));
  const std::string checkpoint = folder / "step-00000003";
  const auto config = ReadLoraConfig(checkpoint);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->rank, 4);
  EXPECT_EQ(config->alpha, 16);
  const auto file = Safetensors::Open(checkpoint + "/adapter_model.safetensors");
  ASSERT_TRUE(file.ok()) << file.status();
  const absl::Span<const Parameter> trained = results[0].replica->parameters().trained();
  EXPECT_EQ(file->tensors().size(), trained.size());
  for (const TensorView& tensor : file->tensors()) {
    EXPECT_TRUE(absl::StartsWith(tensor.spec.name, "base_model.model.model.layers."))
        << tensor.spec.name;
  }
  const auto model = LoadPretrained(checkpoint, {});
  ASSERT_TRUE(model.ok()) << model.status();
  for (const Parameter& parameter : results[0].replica->parameters().all()) {
    EXPECT_TRUE(torch::equal(model->parameters.Get(parameter.shape.name), parameter.value))
        << parameter.shape.name;
  }
}

TEST(LoraTraining, ARunResumesToTheBit) {
  const TestFolder whole, halves;
  const uint64_t expected = TrainAlike(LoraWorld(2, 12, whole.path()))[0].fingerprint;
  WorldOptions first = LoraWorld(2, 12, halves.path());
  first.spec.mutable_checkpoint()->set_every_steps(5);
  first.script = StopAfter(6, StopKeeps::kNothing);
  TrainAlike(first);
  EXPECT_EQ(TrainAlike(LoraWorld(2, 12, halves.path()))[0].fingerprint, expected);
}

TEST(LoraTraining, ARunStartsFromAnAdapter) {
  const TestFolder first, second;
  const std::vector<RankResult> results = TrainAlike(LoraWorld(1, 3, first.path()));
  WorldOptions next = LoraWorld(1, 1, second.path());
  v1::LoraSpec& lora = *next.spec.mutable_train()->mutable_lora();
  lora.clear_rank();
  lora.clear_alpha();
  lora.set_from(first / "step-00000003");
  const auto config = JobLora(TinyConfig(), next.spec.train());
  ASSERT_TRUE(config.ok()) << config.status();
  ASSERT_TRUE(config->has_value());
  EXPECT_EQ((*config)->rank, 4);
  auto replica = Replica::Create(TinyConfig(), next.spec.train(), torch::kCPU);
  ASSERT_TRUE(replica.ok()) << replica.status();
  ASSERT_TRUE(SetInitialWeights(next.spec, **replica).ok());
  for (const Parameter& parameter : results[0].replica->parameters().trained()) {
    EXPECT_TRUE(torch::equal((*replica)->parameters().Get(parameter.shape.name), parameter.value))
        << parameter.shape.name;
  }
}

TEST(LoraTraining, AnotherScaleThanTheCheckpointsIsRefused) {
  const TestFolder folder;
  TrainAlike(LoraWorld(1, 2, folder.path()));
  WorldOptions other = LoraWorld(1, 4, folder.path());
  other.spec.mutable_train()->mutable_lora()->set_alpha(8);
  const absl::Status refused = TrainWorld(other)[0].outcome.status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
  EXPECT_TRUE(absl::StrContains(refused.message(), "train.lora")) << refused;
}

TEST(LoraTraining, AModelThatIsAnAdapterIsRefused) {
  const TestFolder folder;
  TrainAlike(LoraWorld(1, 2, folder.path()));
  v1::JobSpec spec = TinySpec(1);
  spec.mutable_model()->set_from(folder / "step-00000002");
  const absl::Status refused = JobModelConfig(spec, 2).status();
  EXPECT_TRUE(absl::StrContains(refused.message(), "train.lora.from")) << refused;
}

}  // namespace
}  // namespace espalier
