// Combinations of fields that cannot run are refused, in files and from the network alike.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/config/job_file.h"
#include "common/config/model_preset.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

constexpr char kJob[] = "name: job\nmodel: {preset: nano}\ndata: {path: data}\n";

struct Case {
  const char* name;
  std::vector<std::string> settings;
  std::string error;  // empty: fine
};

class Combination : public ::testing::TestWithParam<Case> {};

TEST_P(Combination, RunsOrIsRefusedWithTheReason) {
  const auto spec =
      LoadJobText({.yaml = kJob, .folder = "/jobs", .overrides = GetParam().settings});
  if (GetParam().error.empty()) {
    EXPECT_TRUE(spec.ok()) << spec.status();
  } else {
    EXPECT_THAT(std::string(spec.status().message()), HasSubstr(GetParam().error));
  }
}

std::string NameOf(const ::testing::TestParamInfo<Case>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(
    Model, Combination,
    ::testing::Values(
        Case{"NameWithSpace", {"name=a b"}, "name is 'a b'; allowed: 1 to 64 letters"},
        Case{"NameOfAFolder", {"name=.."}, "name is '..'"},
        Case{"HeadsDividedByKvHeads", {"model.num_key_value_heads=2"}, ""},
        Case{"KvHeadsThatDoNotDivide",
             {"model.num_key_value_heads=3"},
             "model.num_key_value_heads is 3; it must divide model.num_attention_heads, which is "
             "4"},
        Case{"OddHeadDim", {"model.head_dim=33"}, "model.head_dim is 33; it must be even"},
        Case{"Gpt2", {"model={preset: gpt2}"}, ""},
        Case{"Gpt2OfAnotherShape", {"model={preset: nano, architecture: gpt2}"}, ""},
        Case{"Gpt2WithAnOddHead",
             {"model={preset: gpt2, hidden_size: 99, num_attention_heads: 3}"},
             ""},
        Case{"Gpt2WithRotaryPositions",
             {"model={preset: gpt2, rope_theta: 1e6}"},
             "model.rope_theta is not an option of model.architecture gpt2; leave it out"},
        Case{"Gpt2WithFewerKeys",
             {"model={preset: gpt2, num_key_value_heads: 4}"},
             "model.num_key_value_heads is not an option of model.architecture gpt2"},
        Case{"Gpt2BeyondItsPositions",
             {"model={preset: gpt2}", "data.sequence_length=2048"},
             "data.sequence_length is 2048, longer than model.max_position_embeddings (1024)"},
        Case{"UnknownArchitecture", {"model.architecture=mamba"}, "allowed: one of: llama, gpt2"},
        Case{"WidthThatHeadsDoNotDivide", {"model.hidden_size=130"}, "not a multiple"},
        Case{"OnlyFrom", {"model={from: /m}"}, ""},
        Case{"FromWithPreset", {"model.from=/m"}, "model.from takes the whole model"},
        Case{"FromWithField", {"model={from: /m, rope_theta: 5}"}, "takes the whole model"},
        Case{"Nothing", {"model={}"}, "model is not complete; give model.preset"},
        Case{"SomeFields", {"model={hidden_size: 64}"}, "model is not complete"},
        Case{"SequenceBeyondPositions",
             {"model.max_position_embeddings=64"},
             "data.sequence_length is 256, longer than model.max_position_embeddings (64)"},
        Case{"RopeFactorsSwapped",
             {"model.rope_scaling={factor: 8, original_max_position_embeddings: 8192, "
              "low_freq_factor: 4, high_freq_factor: 1}"},
             "low_freq_factor is 4; it must be below high_freq_factor"}),
    NameOf);

INSTANTIATE_TEST_SUITE_P(
    Run, Combination,
    ::testing::Values(
        Case{"WarmupBeyondSteps",
             {"train.steps=10", "train.schedule.warmup_steps=11"},
             "train.schedule.warmup_steps is 11; it must not exceed train.steps, which is 10"},
        Case{"RecomputeAll", {"train.recompute=all"}, ""},
        Case{"RecomputeLayers", {"model={preset: nano}", "train.recompute=[0, 2]"}, ""},
        Case{"RecomputeUnknownWord",
             {"train.recompute=some"},
             "train.recompute has 'some'; allowed: none, alternate, all, or a list of layers from"},
        Case{
            "RecomputeLayerOutside",
            {"model={preset: nano}", "train.recompute=[0, 3]"},
            "train.recompute has '3'; allowed: none, alternate, all, or a list of layers from 0 to "
            "2"},
        Case{
            "RecomputeLayerTwice", {"train.recompute=[1, 1]"}, "train.recompute has layer 1 twice"},
        Case{"RecomputeWordInAList", {"train.recompute=[all, 1]"}, "has 'all' in a list"},
        Case{"DropoutBesideFrom", {"model={from: /m, dropout: 0.1}"}, ""},
        Case{"ChunkNotOfFloats", {"parallel.chunk_bytes=4098"}, "must be a multiple of 4"},
        Case{"MaxBelowMin",
             {"parallel.min_nodes=3", "parallel.max_nodes=2"},
             "parallel.max_nodes is 2; it must be at least parallel.min_nodes, which is 3"},
        Case{"MoreNodesThanNamed",
             {"parallel={nodes: [a], min_nodes: 2}"},
             "parallel.nodes names 1 nodes, but the job wants up to 2"},
        Case{"NodeTwice", {"parallel={nodes: [a, a], min_nodes: 2}"}, "names 'a' twice"},
        Case{"NodeWithSlash", {"parallel.nodes=[a/b]"}, "parallel.nodes holds 'a/b'"},
        Case{"SharesOfEachRank", {"parallel={min_nodes: 2, shares: [3, 0]}"}, ""},
        Case{"SharesOfOthers",
             {"parallel={min_nodes: 2, shares: [1]}"},
             "parallel.shares has 1 entries for 2 ranks; give one per rank"},
        Case{"SharesThatAreMeasured",
             {"parallel={min_nodes: 2, shares: [2, 1], plan: measured}"},
             "parallel.plan is 'measured', but parallel.shares fixes the plan; leave one out"},
        Case{"FixedShares", {"parallel={min_nodes: 2, shares: [2, 1], plan: fixed}"}, ""},
        Case{"SharesAllZero", {"parallel={min_nodes: 2, shares: [0, 0]}"}, "are all 0"},
        Case{"SharesOfAChangingWorld",
             {"parallel={min_nodes: 1, max_nodes: 2, shares: [1, 1]}"},
             "parallel.shares has an entry per rank, so parallel.min_nodes (1) and max_nodes (2)"},
        Case{"MicroBatchOfOthers",
             {"batch.micro_batch=[1, 2, 3]"},
             "batch.micro_batch has 3 entries for 1 ranks"},
        Case{"MicroBatchBounds",
             {"batch.min_micro_batch=9", "batch.max_micro_batch=8"},
             "batch.min_micro_batch is 9; it must be at most batch.max_micro_batch, which is 8"},
        Case{"ALaunchIsGivenUpBeforeAHangIsFound",
             {"launch.timeout_seconds=15", "health.failure_timeout_seconds=10"},
             "launch.timeout_seconds is 15; it must be at least twice"},
        Case{"ALaunchThatFindsAHang",
             {"launch.timeout_seconds=20", "health.failure_timeout_seconds=10"},
             ""},
        Case{"ReproducibleInLargerPasses",
             {"train.reproducible=true", "launch.threads=2", "batch.micro_batch=4"},
             "batch.micro_batch is 4, but with train.reproducible every sequence is"},
        Case{"ReproducibleInSinglePasses",
             {"train.reproducible=true", "launch.threads=2", "batch.micro_batch=1"},
             ""},
        Case{"ReproducibleWithAnyThreads",
             {"train.reproducible=true"},
             "launch.threads is 0, as many as a machine has for each worker, but with"},
        Case{"ReproducibleAndRounded",
             {"train.reproducible=true", "launch.threads=2", "parallel.gradient_dtype=bf16"},
             "parallel.gradient_dtype rounds sums on their way, but with train.reproducible"},
        Case{"LoraOfNoModel",
             {"train.lora={}"},
             "train.lora adapts a model that is there, and model.from names none"},
        Case{"LoraOfAModel", {"model={from: m}", "train.lora={rank: 8, targets: [q_proj]}"}, ""},
        Case{"LoraBesideFreeze",
             {"model={from: m}", "train.lora={rank: 8}", "train.freeze=[a]"},
             "train.freeze and train.lora both say what keeps its values"},
        Case{"LoraFromAnAdapter", {"model={from: m}", "train.lora={from: a, dropout: 0.1}"}, ""},
        Case{"LoraFromAnAdapterOfAnotherRank",
             {"model={from: m}", "train.lora={from: a, rank: 8}"},
             "train.lora.from takes rank, alpha, targets and rslora from the adapter"},
        Case{"LoraOfAllAndOne",
             {"model={from: m}", "train.lora={targets: [all-linear, q_proj]}"},
             "train.lora.targets has 'all-linear' in a list"},
        Case{"PackedExamples", {"train.task=sft", "data.packing=true"}, ""},
        Case{"PackedText",
             {"data.packing=true"},
             "data.packing has examples share rows, and train.task is not sft"},
        Case{"PackedAndGrouped",
             {"train.task=sft", "data.packing=true", "data.group_by_length=true"},
             "leave one of them out"},
        Case{"RecursiveModel",
             {"train.task=trm",
              "model={hidden_size: 64, num_hidden_layers: 2, num_attention_heads: 4, "
              "architecture: trm, recursion: {causal: true}}"},
             ""},
        Case{"RecursiveTaskOnADecoder",
             {"train.task=trm"},
             "train.task trm trains a recursive model; give model.architecture: trm"},
        Case{"RecursiveModelOfAnotherTask",
             {"model={hidden_size: 64, num_hidden_layers: 2, num_attention_heads: 4, "
              "recursion: {}}"},
             "model.recursion is trained by train.task trm"},
        Case{"RecursiveModelThatSeesWhatItIsToGive",
             {"train.task=trm",
              "model={hidden_size: 64, num_hidden_layers: 2, num_attention_heads: 4, "
              "recursion: {causal: true, mix_positions: true}}"},
             "model.recursion.mix_positions sees the tokens that a causal model is to give"},
        Case{"PuzzlesShorterThanTheRowsThatTheModelAnswers",
             {"train.task=trm", "data.sequence_length=81",
              "model={hidden_size: 64, num_hidden_layers: 2, num_attention_heads: 4, "
              "max_position_embeddings: 128, recursion: {}}"},
             "data.sequence_length is 81 and model.max_position_embeddings is 128"},
        Case{"TextShorterThanTheRowsOfTheModel",
             {"train.task=trm", "data.sequence_length=81",
              "model={hidden_size: 64, num_hidden_layers: 2, num_attention_heads: 4, "
              "max_position_embeddings: 128, recursion: {causal: true}}"},
             ""},
        Case{"RecursiveModelWithHeadsOfAnOddWidth",
             {"train.task=trm",
              "model={hidden_size: 60, num_hidden_layers: 2, num_attention_heads: 4, "
              "recursion: {}}"},
             "model.head_dim is 15; it must be even"},
        Case{"RecursiveModelWithPartsOfHeads",
             {"train.task=trm",
              "model={hidden_size: 512, num_hidden_layers: 2, num_attention_heads: 12, "
              "recursion: {}}"},
             "model.hidden_size is 512, not a multiple of model.num_attention_heads, which is 12"},
        Case{"RecursiveModelWithDropout",
             {"train.task=trm",
              "model={hidden_size: 64, num_hidden_layers: 2, num_attention_heads: 4, "
              "recursion: {}, dropout: 0.1}"},
             "model.dropout is no option of a recursive model"},
        Case{"OneMicroBatchForAll", {"batch.micro_batch=5", "parallel.max_nodes=3"}, ""},
        Case{"FewerSequencesThanNodes",
             {"train.global_batch=2", "parallel.min_nodes=3"},
             "train.global_batch is 2 sequences for up to 3 nodes"},
        Case{"BestWithoutEvaluation",
             {"checkpoint.keep_best=1", "evaluate.every_steps=0"},
             "checkpoint.keep_best is 1, but evaluate.every_steps is 0"}),
    NameOf);

v1::JobSpec Good() {
  v1::JobSpec spec;
  spec.set_name("job");
  spec.mutable_model()->set_preset("nano");
  spec.mutable_data()->set_path("/data");
  FillJobDefaults(spec);
  return spec;
}

std::string Refusal(const v1::JobSpec& spec) {
  return std::string(ValidateJobSpec(spec).message());
}

TEST(ValidateJobSpec, AcceptsASpecWithItsDefaultsFilledIn) {
  EXPECT_EQ(Refusal(Good()), "");
  EXPECT_EQ(Good().parallel().max_nodes(), 1);
}

TEST(ValidateJobSpec, RefusesWhatTheYamlLoaderWouldRefuse) {
  v1::JobSpec spec = Good();
  spec.mutable_train()->mutable_optimizer()->set_beta1(2);
  spec.mutable_train()->set_task(static_cast<v1::Task>(99));
  spec.mutable_launch()->set_device("tpu");
  spec.mutable_data()->set_path(std::string("a\0b", 3));
  spec.mutable_train()->clear_steps();
  const std::string refusal = Refusal(spec);
  EXPECT_THAT(refusal, HasSubstr("train.optimizer.beta1 is 2; allowed: a number from 0"));
  EXPECT_THAT(refusal, HasSubstr("train.task is 99; allowed: one of: pretrain"));
  EXPECT_THAT(refusal, HasSubstr("launch.device is 'tpu'; allowed: one of: auto"));
  EXPECT_THAT(refusal, HasSubstr("data.path is 'a\\x00b' (with a control character)"));
  EXPECT_THAT(refusal, HasSubstr("train.steps is missing"));
}

TEST(ValidateJobSpec, RefusesNotANumberAndCombinations) {
  v1::JobSpec spec = Good();
  spec.mutable_train()->set_clip_norm(std::nan(""));
  EXPECT_THAT(Refusal(spec), HasSubstr("train.clip_norm is nan"));
  spec = Good();
  spec.mutable_parallel()->set_max_nodes(40);
  EXPECT_THAT(Refusal(spec), HasSubstr("train.global_batch is 32 sequences for up to 40 nodes"));
}

TEST(ValidateJobSpec, RefusesFieldsOfAnotherVersion) {
  v1::JobSpec spec = Good();
  const auto* reflection = spec.train().GetReflection();
  reflection->MutableUnknownFields(spec.mutable_train())->AddVarint(999, 1);
  EXPECT_THAT(Refusal(spec), HasSubstr("train holds fields that version"));
}

TEST(ModelPreset, OverridesWinAndHeadsFollow) {
  v1::ModelSpec spec;
  spec.set_preset("1b");
  EXPECT_EQ(ResolveModel(spec).num_key_value_heads(), 4);
  EXPECT_EQ(ResolveModel(spec).head_dim(), 128);
  spec.set_num_attention_heads(32);
  EXPECT_EQ(ResolveModel(spec).num_key_value_heads(), 32);
  EXPECT_EQ(ResolveModel(spec).head_dim(), 64);
}

}  // namespace
}  // namespace espalier
