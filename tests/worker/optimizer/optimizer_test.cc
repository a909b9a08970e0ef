// The fused AdamW does what LibTorch's does, whatever the number of threads.
#include "worker/optimizer/optimizer.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/optim.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/worker/support/tiny_model.h"
#include "worker/kernels/adamw_kernel.h"
#include "worker/tensor/torch_compat.h"

namespace espalier {
namespace {

DecoderConfig Config() {
  DecoderConfig config;
  config.vocab_size = 257;
  config.hidden_size = 48;
  config.intermediate_size = 100;
  config.layers = 2;
  config.heads = config.kv_heads = 4;
  config.head_dim = 12;
  return config;
}

v1::OptimizerSpec Spec() {
  v1::OptimizerSpec spec;
  spec.set_beta1(0.9);
  spec.set_beta2(0.95);
  spec.set_eps(1e-8);
  spec.set_weight_decay(0.1);
  spec.set_decay_all(false);
  return spec;
}

Parameters MakeParameters() {
  Parameters parameters = *Parameters::Create(Config(), Trained(EmbeddingGradient::kDense));
  parameters.Initialize(/*seed=*/3, /*initializer_range=*/0.5);
  return parameters;
}

void FillGradient(Parameters& parameters, uint64_t seed) {
  torch::manual_seed(seed);
  parameters.summed_gradient().Only().copy_(torch::randn({parameters.elements()}));
}

// LibTorch's own optimizer on copies of the same tensors.
class Reference {
 public:
  explicit Reference(const Parameters& parameters)
      : optimizer_(std::vector<torch::optim::OptimizerParamGroup>{}) {
    for (const bool decay : {true, false}) {
      std::vector<torch::Tensor> group;
      for (const Parameter& p : parameters.all()) {
        if (p.shape.decay != decay) continue;
        group.push_back(p.value.detach().clone().set_requires_grad(true));
        copies_.push_back({&p, group.back()});
      }
      auto options = torch::optim::AdamWOptions(0.01)
                         .betas({0.9, 0.95})
                         .eps(1e-8)
                         .weight_decay(decay ? 0.1 : 0.0);
      optimizer_.add_param_group(torch::optim::OptimizerParamGroup(
          group, std::make_unique<torch::optim::AdamWOptions>(options)));
    }
  }
  void Step(double scale) {
    for (auto& [p, copy] : copies_) copy.mutable_grad() = p->leaf.grad() * scale;
    optimizer_.step();
  }
  double LargestDifference() const {
    double difference = 0;
    for (const auto& [p, copy] : copies_) {
      difference = std::max(difference, (p->value - copy).abs().max().item<double>());
    }
    return difference;
  }

 private:
  std::vector<std::pair<const Parameter*, torch::Tensor>> copies_;
  torch::optim::AdamW optimizer_;
};

TEST(AdamW, AgreesWithLibTorchsOverTwentySteps) {
  Parameters parameters = MakeParameters();
  AdamW optimizer = *AdamW::Create(Spec(), parameters);
  Reference reference(parameters);
  for (int step = 0; step < 20; ++step) {
    FillGradient(parameters, step);
    reference.Step(0.25);
    optimizer.Apply({.learning_rate = 0.01, .gradient_scale = 0.25});
    ASSERT_LT(reference.LargestDifference(), 2e-6) << "step " << step;
  }
}

// The update of the package adam-atan2, in double precision and by the library's atan2, of
// gradients that span many decades: the first moment is corrected outside the angle, which has no
// factor.
TEST(AdamAtan2, IsThatOfThePackage) {
  v1::OptimizerSpec spec = Spec();
  spec.set_kind(v1::OPTIMIZER_KIND_ADAM_ATAN2);
  Parameters parameters = MakeParameters();
  AdamW optimizer = *AdamW::Create(spec, parameters);
  torch::Tensor first = torch::zeros({parameters.elements()}, torch::kDouble),
                second = first.clone();
  for (int step = 1; step <= 12; ++step) {
    FillGradient(parameters, step);
    torch::Tensor gradient = parameters.flat_gradient().Only();
    gradient.mul_(torch::pow(10, torch::randn_like(gradient).mul_(3)));
    gradient[7] = 0;
    const torch::Tensor g = gradient.to(torch::kDouble), before = parameters.flat().Only().clone();
    first = 0.9 * first + 0.1 * g;
    second = 0.95 * second + 0.05 * g.square();
    const torch::Tensor root = second.sqrt() / std::sqrt(1 - std::pow(0.95, step));
    const torch::Tensor move = 0.01 / (1 - std::pow(0.9, step)) * torch::atan2(first, root);
    optimizer.Apply({.learning_rate = 0.01});
    for (const Parameter& parameter : parameters.all()) {
      const auto part = [&](const torch::Tensor& flat) {
        return flat.narrow(0, parameter.offset, parameter.size);
      };
      const double keep = parameter.shape.decay ? 1 - 0.01 * 0.1 : 1;
      const torch::Tensor expected = part(before) * keep - part(move);
      EXPECT_LT((part(parameters.flat().Only()) - expected).abs().max().item<double>(), 5e-7);
    }
  }
}

// After k updates it is mu^k of the first values and (1 - mu) mu^(k - i) of those after update i.
TEST(AdamW, AveragesTheValuesOfAllUpdates) {
  constexpr double kDecay = 0.75;
  Parameters parameters = MakeParameters();
  AdamW optimizer = *AdamW::Create(Spec(), parameters, kDecay);
  optimizer.ResetAverage();
  torch::Tensor expected = parameters.flat().Only().to(torch::kDouble);
  for (int step = 0; step < 12; ++step) {
    FillGradient(parameters, step);
    optimizer.Apply({.learning_rate = 0.05});
    expected = kDecay * expected + (1 - kDecay) * parameters.flat().Only().to(torch::kDouble);
  }
  const torch::Tensor average = optimizer.average().Only();
  EXPECT_LT((average - expected).abs().max().item<double>(), 1e-6);
  EXPECT_GT((average - parameters.flat().Only()).abs().max().item<double>(), 0.01);
  EXPECT_FALSE((*AdamW::Create(Spec(), parameters)).average().defined());
}

TEST(AdamW, ParametersWithTheAverageShareNothingThatIsTrained) {
  for (const auto type : {torch::kFloat, torch::kBFloat16}) {
    DecoderConfig config = Config();
    config.tie_word_embeddings = type == torch::kFloat;
    Parameters parameters =
        *Parameters::Create(config, Trained(EmbeddingGradient::kDense, torch::kCPU, type));
    parameters.Initialize(/*seed=*/3, /*initializer_range=*/0.5);
    AdamW optimizer = *AdamW::Create(Spec(), parameters, 0.5);
    optimizer.ResetAverage();
    const torch::Tensor before = parameters.Head().clone();
    FillGradient(parameters, 1);
    optimizer.Apply({.learning_rate = 0.05});
    const Parameters averaged = *parameters.WithValues(optimizer.average());
    const torch::Tensor head = averaged.Head().to(torch::kFloat);
    const torch::Tensor between = (before + parameters.Head()).to(torch::kFloat) / 2;
    EXPECT_LT((head - between).abs().max().item<double>(), type == torch::kFloat ? 1e-5 : 0.02);
    EXPECT_FALSE(averaged.Head().requires_grad());
    EXPECT_EQ(averaged.Head().scalar_type(), type);
    EXPECT_TRUE(averaged.GradientLeaves().empty());
  }
}

TEST(AdamW, LeavesTheGradientZero) {
  Parameters parameters = MakeParameters();
  AdamW optimizer = *AdamW::Create(Spec(), parameters);
  FillGradient(parameters, 1);
  optimizer.Apply({.learning_rate = 0.01});
  EXPECT_EQ(parameters.flat_gradient().Only().abs().max().item<double>(), 0);
}

TEST(AdamW, DecaysMatricesOnlyUnlessTold) {
  for (const bool all : {false, true}) {
    v1::OptimizerSpec spec = Spec();
    spec.set_decay_all(all);
    Parameters parameters = MakeParameters();
    AdamW optimizer = *AdamW::Create(spec, parameters);
    optimizer.Apply({.learning_rate = 0.5});  // zero gradient: decay alone
    EXPECT_FLOAT_EQ(parameters.Get("model.norm.weight")[0].item<float>(), all ? 0.95F : 1.0F);
  }
}

TEST(AdamW, GivesTheSameBitsWithAnyNumberOfThreads) {
  std::vector<torch::Tensor> results;
  std::vector<double> norms;
  const int threads_before = at::get_num_threads();
  for (const int threads : {1, 2, 3}) {
    at::set_num_threads(threads);
    Parameters parameters = MakeParameters();
    AdamW optimizer = *AdamW::Create(Spec(), parameters);
    FillGradient(parameters, 9);
    norms.push_back(optimizer.GradientNorm());
    optimizer.Apply({.learning_rate = 0.01});
    results.push_back(parameters.flat().Only().clone());
  }
  at::set_num_threads(threads_before);
  for (size_t i = 1; i < results.size(); ++i) {
    EXPECT_TRUE(torch::equal(results[0], results[i]));
    EXPECT_EQ(norms[0], norms[i]);
  }
}

// Ranks on unlike machines update their replicas on their own. On a machine without an accelerator
// the list holds the CPU alone, and with what is trained on the host as for MPS.
TEST(AdamW, GivesTheSameBitsOnEveryDevice) {
  std::vector<std::pair<std::string, bool>> places = {{"cpu", false}, {"cpu", true}};
  if (HasCuda()) places.emplace_back("cuda", false);
  if (HasMps()) places.emplace_back("mps", true);
  for (const v1::MomentType type : {v1::MOMENT_TYPE_FP32, v1::MOMENT_TYPE_INT8}) {
    v1::OptimizerSpec spec = Spec();
    spec.set_moments(type);
    std::vector<torch::Tensor> expected;
    for (const auto& [device, values_on_host] : places) {
      Parameters::Options options =
          Trained(EmbeddingGradient::kDense, torch::Device(device), torch::kBFloat16);
      options.values_on_host = values_on_host;
      Parameters parameters = *Parameters::Create(Config(), options);
      parameters.Initialize(3, 0.5);
      AdamW optimizer = *AdamW::Create(spec, parameters);
      for (int step = 0; step < 5; ++step) {
        FillGradient(parameters, step);
        optimizer.Apply({.learning_rate = 0.01, .gradient_scale = 0.3});
      }
      std::vector<torch::Tensor> results = {parameters.flat().Only().cpu(),
                                            parameters.flat_copy().Only().cpu()};
      for (const torch::Tensor& buffer : optimizer.moments().Buffers()) {
        results.push_back(buffer.cpu());
      }
      if (expected.empty()) expected = results;
      for (size_t i = 0; i < results.size(); ++i) {
        EXPECT_TRUE(torch::equal(results[i], expected[i])) << device << " " << i;
      }
      EXPECT_EQ(parameters.flat_gradient().Only().abs().max().item<double>(), 0) << device;
    }
  }
}

// The same gradient, of the whole table and as rows.
TEST(AdamW, TreatsRowsThatWereLookedUpAsTheTableTheyAreOf) {
  for (const v1::MomentType type : {v1::MOMENT_TYPE_FP32, v1::MOMENT_TYPE_INT8}) {
    v1::OptimizerSpec spec = Spec();
    spec.set_moments(type);
    DecoderConfig config = Config();
    config.vocab_size = 2000;  // more than a block
    config.tie_word_embeddings = false;
    const auto create = [&](EmbeddingGradient untied) {
      Parameters parameters = *Parameters::Create(config, Trained(untied));
      parameters.Initialize(3, 0.5);
      return parameters;
    };
    Parameters whole = create(EmbeddingGradient::kDense);
    Parameters apart = create(EmbeddingGradient::kRowsApart);
    AdamW of_whole = *AdamW::Create(spec, whole), of_apart = *AdamW::Create(spec, apart);
    for (const std::vector<int64_t>& ids :
         {std::vector<int64_t>{0, 5, 341, 342, 1999}, {5, 700}, {}, {1, 2, 3}}) {
      FillGradient(whole, 11);
      const int64_t dense = apart.flat_gradient().numel();
      const torch::Tensor table = whole.flat_gradient().Only().slice(0, dense).view(
          {config.vocab_size, config.hidden_size});
      const torch::Tensor index = torch::tensor(ids, torch::kLong);
      const torch::Tensor rows = table.index_select(0, index);
      table.zero_().index_copy_(0, index, rows);
      apart.flat_gradient().Only().copy_(whole.flat_gradient().Only().slice(0, 0, dense));
      if (!ids.empty()) apart.lookup_gradient() = {ids, rows};
      EXPECT_NEAR(of_apart.GradientNorm(), of_whole.GradientNorm(), 1e-9);
      of_whole.Apply({.learning_rate = 0.01});
      of_apart.Apply({.learning_rate = 0.01});
      EXPECT_TRUE(torch::equal(apart.flat().Only(), whole.flat().Only()));
      EXPECT_TRUE(apart.lookup_gradient().ids.empty()) << "used once";
    }
  }
}

TEST(GradientNorm, IsTheLengthOfTheWholeGradient) {
  Parameters parameters = MakeParameters();
  AdamW optimizer = *AdamW::Create(Spec(), parameters);
  FillGradient(parameters, 5);
  const double expected =
      parameters.flat_gradient().Only().to(torch::kDouble).norm().item<double>();
  EXPECT_NEAR(optimizer.GradientNorm(), expected, 1e-9 * expected);
}

TEST(GradientNorm, IsNotFiniteWhenOneElementIsNot) {
  Parameters parameters = MakeParameters();
  AdamW optimizer = *AdamW::Create(Spec(), parameters);
  for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    FillGradient(parameters, 5);
    parameters.flat_gradient().Only()[parameters.elements() - 1].fill_(bad);
    EXPECT_FALSE(std::isfinite(optimizer.GradientNorm()));
  }
}

TEST(ClipFactor, ShortensOnlyWhatIsTooLong) {
  EXPECT_EQ(ClipFactor(2.0, 1.0), 0.5);
  EXPECT_EQ(ClipFactor(0.5, 1.0), 1.0);
  EXPECT_EQ(ClipFactor(50.0, 0.0), 1.0) << "0 means never";
}

}  // namespace
}  // namespace espalier
