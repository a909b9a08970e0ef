// Frozen parameters: what is trained beside them comes out the same on one rank and on two, in one
// arena and in many, kept or resumed; they take the memory that the account says and are in no
// checkpoint.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/worker/support/test_folder.h"
#include "tests/worker/support/training_world.h"
#include "tests/worker/train/train_alike.h"
#include "worker/memory/memory_advice.h"
#include "worker/model/pretrained.h"
#include "worker/state/checkpoint_store.h"

namespace espalier {
namespace {

// Every second layer and the embedding.
v1::JobSpec FrozenSpec(int64_t steps) {
  v1::JobSpec spec = TinySpec(steps);
  spec.mutable_train()->add_freeze("model.embed_tokens.weight");
  spec.mutable_train()->add_freeze("model.layers.0.*");
  return spec;
}

WorldOptions FrozenWorld(int ranks, int64_t steps, const std::string& folder) {
  WorldOptions options;
  options.ranks = ranks;
  options.spec = FrozenSpec(steps);
  options.spec.mutable_batch()->add_micro_batch(4);
  options.checkpoints = folder;
  return options;
}

// The first of two layers and the embedding, below which nothing takes a gradient; and every second
// layer of four, so that gradients go through frozen layers to trained ones, with and without the
// embedding below all.
TEST(Frozen, TwoRanksTrainWhatOneDoes) {
  constexpr int64_t kSteps = 20;
  struct Case {
    int64_t layers;
    std::vector<std::string> frozen;
  };
  for (const Case& c : {Case{2, {"model.embed_tokens.weight", "model.layers.0.*"}},
                        Case{4, {kEmbeddingName, "model.layers.1.*", "model.layers.3.*"}},
                        Case{4, {"model.layers.0.*", "model.layers.2.*"}}}) {
    SCOPED_TRACE(absl::StrCat(c.layers, " layers, frozen ", absl::StrJoin(c.frozen, " ")));
    const TestFolder one, two, small;
    const auto world = [&](int ranks, const TestFolder& folder) {
      WorldOptions options = FrozenWorld(ranks, kSteps, folder.path());
      options.layers = c.layers;
      options.spec.mutable_train()->mutable_freeze()->Assign(c.frozen.begin(), c.frozen.end());
      return options;
    };
    const std::vector<double> expected = TrainAlike(world(1, one))[0].losses;
    ASSERT_EQ(expected.size(), kSteps);
    EXPECT_LT(expected.back(), 0.9 * expected.front()) << "it does not learn";
    ExpectNearly(TrainAlike(world(2, two))[0].losses, expected);
    // Arenas of a few parameters each: the same bits as in one.
    WorldOptions arenas = world(1, small);
    arenas.arena_elements = 2500;
    EXPECT_EQ(TrainAlike(arenas)[0].losses, expected);
  }
}

TEST(Frozen, ArenasChangeNoBitOfAWholeModel) {
  for (const bool tied : {false, true}) {
    for (const v1::GradientDtype wire : {v1::GRADIENT_DTYPE_FP32, v1::GRADIENT_DTYPE_INT8}) {
      std::vector<std::vector<double>> losses;
      for (const int64_t elements : {kArenaElements, int64_t{2500}}) {
        const TestFolder folder;
        WorldOptions options = FrozenWorld(2, 8, folder.path());
        options.spec.mutable_train()->clear_freeze();
        options.spec.mutable_parallel()->set_gradient_dtype(wire);
        options.bucket_elements = 1;  // buckets are parameters, wherever arenas end
        options.tied = tied;
        options.arena_elements = elements;
        losses.push_back(TrainAlike(options)[0].losses);
      }
      EXPECT_EQ(losses[0], losses[1]);
    }
  }
}

TEST(Frozen, KeepTheirValuesAndTakeNoState) {
  const TestFolder folder;
  const std::vector<RankResult> results = TrainAlike(FrozenWorld(2, 3, folder.path()));
  Replica& replica = *results[0].replica;
  Parameters initial = *Parameters::Create(replica.config(), Parameters::Options{});
  initial.Initialize(FrozenSpec(1).train().seed(), replica.config().initializer_range);
  for (const Parameter& parameter : replica.parameters().all()) {
    const bool frozen = parameter.shape.layer == 0 || parameter.shape.name == kEmbeddingName;
    EXPECT_EQ(parameter.trained, !frozen) << parameter.shape.name;
    EXPECT_EQ(parameter.leaf.requires_grad(), !frozen) << parameter.shape.name;
    EXPECT_EQ(torch::equal(parameter.value, initial.Get(parameter.shape.name)), frozen)
        << parameter.shape.name;
  }
  EXPECT_EQ(replica.optimizer().moments().first().numel(), replica.parameters().trained_elements());
}

// To the byte, of what training keeps.
TEST(Frozen, TakeTheMemoryOfTheAccount) {
  for (const v1::Precision precision : {v1::PRECISION_FP32, v1::PRECISION_BF16}) {
    v1::JobSpec spec = FrozenSpec(1);
    spec.mutable_train()->set_precision(precision);
    DecoderConfig config = TinyConfig();
    config.tie_word_embeddings = false;
    const auto replica = Replica::Create(config, spec.train(), torch::kCPU);
    ASSERT_TRUE(replica.ok()) << replica.status();
    Parameters& parameters = (*replica)->parameters();
    int64_t bytes = parameters.flat().nbytes() + parameters.flat_gradient().nbytes() +
                    parameters.flat_copy().nbytes();
    for (const Parameter& parameter : parameters.all()) {
      if (!parameter.trained) bytes += static_cast<int64_t>(parameter.value.nbytes());
    }
    for (const torch::Tensor& moment : (*replica)->optimizer().moments().Buffers()) {
      bytes += static_cast<int64_t>(moment.nbytes());
    }
    EXPECT_EQ(StateBytesOf({config, spec, (*replica)->parameter_options()}).on_device, bytes);
    // Of a frozen matrix what it is computed with, and nothing else.
    const Parameter& matrix = *parameters.Find("model.layers.0.mlp.down_proj.weight");
    const int64_t width = precision == v1::PRECISION_BF16 ? 2 : 4;
    EXPECT_EQ(static_cast<int64_t>(matrix.leaf.storage().nbytes()), width * matrix.size);
  }
}

TEST(Frozen, AreInNoCheckpointAndARunResumesToTheBit) {
  const TestFolder whole, halves;
  const uint64_t expected = TrainAlike(FrozenWorld(2, 12, whole.path()))[0].fingerprint;
  WorldOptions first = FrozenWorld(2, 12, halves.path());
  first.spec.mutable_checkpoint()->set_every_steps(5);
  first.script = StopAfter(6, StopKeeps::kNothing);
  TrainAlike(first);
  const CheckpointStore store(PosixFileSystem(), {.directory = halves.path()});
  const auto found = store.FindNewest();
  ASSERT_TRUE(found.ok() && found->newest) << found.status();
  EXPECT_EQ(found->newest->step(), Step(5));
  for (const TensorView& tensor : found->newest->model().tensors()) {
    EXPECT_FALSE(absl::StrContains(tensor.spec.name, "layers.0.")) << tensor.spec.name;
    EXPECT_NE(tensor.spec.name, kEmbeddingName);
  }
  EXPECT_EQ(found->newest->Text("model.safetensors").status().code(), absl::StatusCode::kNotFound);
  // Two other ranks, of which one resumes and the other receives; frozen values come from the seed.
  EXPECT_EQ(TrainAlike(FrozenWorld(2, 12, halves.path()))[0].fingerprint, expected);
}

TEST(Frozen, ACheckpointWithItsBaseIsAModel) {
  const TestFolder folder;
  WorldOptions options = FrozenWorld(1, 3, folder.path());
  const std::vector<RankResult> results = TrainAlike(options);
  const auto model = LoadPretrained(folder / "step-00000003", {});
  ASSERT_TRUE(model.ok()) << model.status();
  for (const Parameter& parameter : results[0].replica->parameters().all()) {
    EXPECT_TRUE(torch::equal(model->parameters.Get(parameter.shape.name), parameter.value))
        << parameter.shape.name;
  }
}

TEST(Frozen, OtherParametersThanTheCheckpointsAreRefused) {
  const TestFolder folder;
  TrainAlike(FrozenWorld(1, 2, folder.path()));
  WorldOptions other = FrozenWorld(1, 4, folder.path());
  other.spec.mutable_train()->add_freeze("model.norm.weight");
  const absl::Status refused = TrainWorld(other)[0].outcome.status();
  EXPECT_TRUE(absl::StrContains(refused.message(), "train.freeze")) << refused;
}

TEST(Frozen, OtherValuesBelowTheTrainedOnesAreRefused) {
  const TestFolder folder;
  TrainAlike(FrozenWorld(1, 2, folder.path()));
  WorldOptions other = FrozenWorld(1, 4, folder.path());
  other.spec.mutable_train()->set_seed(99);
  const absl::Status refused = TrainWorld(other)[0].outcome.status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
  EXPECT_TRUE(absl::StrContains(refused.message(), "other values")) << refused;
}

// Probes see what passes do: the rows of an embedding that is trained take a gradient in both.
TEST(Frozen, ProbesTakeWhatPassesTake) {
  for (const char* frozen : {"*norm*", "model.layers.*"}) {
    const TestFolder folder;
    WorldOptions options = FrozenWorld(1, 3, folder.path());
    v1::TrainSpec& train = *options.spec.mutable_train();
    train.clear_freeze();
    train.add_freeze(frozen);
    if (std::string(frozen) == "model.layers.*") {
      train.add_freeze("lm_head.weight");
      train.add_freeze("model.norm.weight");
    }
    options.spec.mutable_batch()->clear_micro_batch();
    const std::vector<RankResult> results = TrainAlike(options);
    EXPECT_EQ(results[0].losses.size(), 3U);
  }
}

TEST(Frozen, PatternsThatNameNothingOrAllAreRefused) {
  for (const char* pattern : {"model.layers.9.*", "*"}) {
    v1::JobSpec spec = TinySpec(1);
    spec.mutable_train()->add_freeze(pattern);
    const auto replica = Replica::Create(TinyConfig(), spec.train(), torch::kCPU);
    EXPECT_EQ(replica.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(absl::StrContains(replica.status().message(), pattern)) << replica.status();
  }
}

}  // namespace
}  // namespace espalier
