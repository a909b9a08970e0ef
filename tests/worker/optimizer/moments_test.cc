// 8-bit optimizer state keeps what AdamW needs of its moments, and converts to and from fp32.
#include "worker/optimizer/moments.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "common/base/random.h"
#include "tests/worker/support/tiny_model.h"
#include "worker/kernels/adamw_kernel.h"
#include "worker/optimizer/optimizer.h"

namespace espalier {
namespace {

using torch::Tensor;

v1::OptimizerSpec Spec(v1::MomentType type) {
  v1::OptimizerSpec spec;
  spec.set_beta1(0.9);
  spec.set_beta2(0.95);
  spec.set_eps(1e-8);
  spec.set_moments(type);
  return spec;
}

// Sizes that are no multiple of a block or of a vector.
Parameters MakeParameters() {
  DecoderConfig config;
  config.vocab_size = 257;
  config.hidden_size = 44;
  config.intermediate_size = 100;
  config.layers = 2;
  config.heads = config.kv_heads = 4;
  config.head_dim = 11;
  Parameters parameters = *Parameters::Create(config, Trained(EmbeddingGradient::kDense));
  parameters.Initialize(/*seed=*/3, /*initializer_range=*/0.5);
  return parameters;
}

// Gradients whose scale differs from element to element by four orders of magnitude.
Tensor Gradient(const Parameters& parameters, int64_t seed) {
  torch::manual_seed(7);
  const Tensor scale = torch::pow(
      10, -4 * torch::rand({parameters.all().back().offset + parameters.all().back().size}));
  torch::manual_seed(1000 + seed);
  return (torch::randn(scale.sizes()) + 0.3) * scale;
}

TEST(Moment8, EveryCodeSurvivesDecodingAndEncoding) {
  const float unit = 0.37F;
  for (int code = -127; code <= 127; ++code) {
    const float m = moment8::DecodeFirst(static_cast<int8_t>(code), unit);
    EXPECT_EQ(moment8::EncodeFirst(m, 1 / unit, moment8::kNearest), code);
  }
  for (int code = 0; code <= 255; ++code) {
    const float v = moment8::DecodeSecond(static_cast<uint8_t>(code), unit);
    EXPECT_EQ(moment8::EncodeSecond(v, 1 / unit, moment8::kNearest), code);
  }
}

TEST(Moment8, RoundsSoThatTheMeanIsRight) {
  constexpr int kTries = 20000;
  for (const float share : {1.0F, 0.7F, 0.1F, 3e-3F, 1e-5F}) {  // of the block's largest
    const float unit_m = moment8::FirstUnit(1);
    const float unit_v = moment8::SecondUnit(1);
    double m = 0, v = 0;
    for (uint32_t i = 0; i < kTries; ++i) {
      const uint32_t bits = moment8::RandomBits(/*key=*/5, i);
      m += moment8::DecodeFirst(moment8::EncodeFirst(-share, 1 / unit_m, moment8::LowRandom(bits)),
                                unit_m);
      v += moment8::DecodeSecond(
          moment8::EncodeSecond(share, 1 / unit_v, moment8::HighRandom(bits)), unit_v);
    }
    EXPECT_NEAR(m / kTries, -share, 0.01 * share);
    EXPECT_NEAR(v / kTries, share, 0.01 * share);
  }
}

TEST(Moment8, ASecondMomentAboveZeroStaysAboveZero) {
  const float unit = moment8::SecondUnit(1);
  for (const float v : {1e-12F, 1e-30F, 1e-44F}) {
    EXPECT_GT(moment8::EncodeSecond(v, 1 / unit, 0.999F), 0);
  }
  EXPECT_EQ(moment8::EncodeSecond(0, 1 / unit, 0), 0);
}

TEST(Moment8, HoldsBlocksOfAnyMagnitude) {
  for (const float largest : {3e38F, 1.0F, 1e-20F, 1e-37F, 1e-42F, 0.0F}) {
    const float first = moment8::FirstUnit(largest), second = moment8::SecondUnit(largest);
    for (const float unit : {first, second}) {
      EXPECT_TRUE(std::isfinite(1 / unit)) << largest;
      EXPECT_GT(unit, 0) << largest;
    }
    const float m = moment8::DecodeFirst(moment8::EncodeFirst(-largest, 1 / first, 0.3F), first);
    const float held = std::min(largest, moment8::kLargestFirst);
    EXPECT_NEAR(m, -held, std::max(1e-5F * held, 1e-37F)) << largest;
    EXPECT_TRUE(std::isfinite(moment8::DecodeSecond(255, second))) << largest;
  }
}

// A gradient whose square is not finite: with fp32 its parameter stays where it is.
TEST(Moment8, AnOverflowStaysWithItsElement) {
  Parameters parameters = MakeParameters();
  AdamW optimizer = *AdamW::Create(Spec(v1::MOMENT_TYPE_INT8), parameters);
  for (int step = 0; step < 3; ++step) {
    parameters.flat_gradient().Only().copy_(Gradient(parameters, step));
    if (step == 0) parameters.flat_gradient().Only()[5].fill_(1e20);
    parameters.flat_gradient().Only()[6].fill_(0);
    optimizer.Apply({.learning_rate = 0.01});
    EXPECT_TRUE(parameters.flat().Only().isfinite().all().item<bool>()) << "step " << step;
  }
}

TEST(Moment8, DecaysByLessThanAStepOfItsCode) {
  Parameters parameters = MakeParameters();
  v1::OptimizerSpec spec = Spec(v1::MOMENT_TYPE_INT8);
  spec.set_beta2(0.999);
  AdamW optimizer = *AdamW::Create(spec, parameters);
  parameters.flat_gradient().Only().copy_(Gradient(parameters, 0));
  optimizer.Apply({});
  const Moments& moments = optimizer.moments();
  const auto sum = [&] {
    double total = 0;
    for (size_t i = 0; i < parameters.all().size(); ++i) {
      const int64_t size = parameters.all()[i].size;
      std::vector<float> m(size), v(size);
      cpu::DecodeMoments(moments.At(i, 0), size, m.data(), v.data());
      for (const float each : v) total += each;
    }
    return total;
  };
  const double before = sum();
  for (int step = 0; step < 1000; ++step) optimizer.Apply({});
  EXPECT_NEAR(sum() / before, std::pow(0.999, 1000), 0.02);
}

TEST(AdamW8, MovesParametersAsFp32Does) {
  Parameters exact = MakeParameters(), small = MakeParameters();
  const Tensor start = exact.flat().Only().clone();
  AdamW exact_optimizer = *AdamW::Create(Spec(v1::MOMENT_TYPE_FP32), exact);
  AdamW small_optimizer = *AdamW::Create(Spec(v1::MOMENT_TYPE_INT8), small);
  for (int step = 0; step < 50; ++step) {
    for (Parameters* parameters : {&exact, &small}) {
      parameters->flat_gradient().Only().copy_(Gradient(*parameters, step));
    }
    exact_optimizer.Apply({.learning_rate = 0.01});
    small_optimizer.Apply({.learning_rate = 0.01});
  }
  const double moved = (exact.flat().Only() - start).norm().item<double>();
  EXPECT_LT((small.flat().Only() - exact.flat().Only()).norm().item<double>(), 0.12 * moved);
  EXPECT_EQ(small.flat_gradient().Only().abs().max().item<double>(), 0);
}

TEST(AdamW8, GivesTheSameBitsWithAnyNumberOfThreads) {
  std::vector<std::vector<Tensor>> results;
  const int threads_before = at::get_num_threads();
  for (const int threads : {1, 2, 3}) {
    at::set_num_threads(threads);
    Parameters parameters = MakeParameters();
    AdamW optimizer = *AdamW::Create(Spec(v1::MOMENT_TYPE_INT8), parameters);
    for (int step = 0; step < 3; ++step) {
      parameters.flat_gradient().Only().copy_(Gradient(parameters, step));
      optimizer.Apply({.learning_rate = 0.01});
    }
    results.push_back(optimizer.moments().Buffers());
    results.back().push_back(parameters.flat().Only());
  }
  at::set_num_threads(threads_before);
  for (size_t i = 1; i < results.size(); ++i) {
    for (size_t j = 0; j < results[0].size(); ++j) {
      EXPECT_TRUE(torch::equal(results[0][j], results[i][j])) << j;
    }
  }
}

TEST(Moments, TakeAQuarterInEightBits) {
  Parameters parameters = MakeParameters();
  for (const v1::MomentType type : {v1::MOMENT_TYPE_FP32, v1::MOMENT_TYPE_INT8}) {
    const Moments moments = *Moments::Create(type, parameters);
    int64_t bytes = 0;
    for (const Tensor& buffer : moments.Buffers()) {
      bytes += static_cast<int64_t>(buffer.nbytes());
      EXPECT_EQ(buffer.to(torch::kFloat).abs().max().item<float>(), 0);
    }
    const int64_t blocks_begun = 8 * static_cast<int64_t>(parameters.all().size());
    EXPECT_NEAR(bytes, MomentBytes(type, parameters.elements()), blocks_begun);
  }
}

TEST(Moments, ComeBackFromTheOtherKind) {
  Parameters parameters = MakeParameters();
  const Moments narrow = *Moments::Create(v1::MOMENT_TYPE_INT8, parameters);
  const Moments wide = *Moments::Create(v1::MOMENT_TYPE_FP32, parameters);
  for (size_t i = 0; i < parameters.all().size(); ++i) {
    const std::vector<Moments::Part> from = narrow.PartsOfTheOtherKind(i);  // fp32
    from[0].values.copy_(torch::randn_like(from[0].values));
    from[1].values.copy_(torch::rand_like(from[1].values));
    const std::vector<Moments::Part> codes = narrow.FromTheOtherKind(from);
    const std::vector<Moments::Part> back = wide.FromTheOtherKind(codes);
    ASSERT_EQ(back.size(), 2);
    for (const int moment : {0, 1}) {
      EXPECT_STREQ(back[moment].prefix, from[moment].prefix);
      EXPECT_TRUE(torch::allclose(back[moment].values, from[moment].values, 0.1, 1e-3));
    }
    // Codes that were once made are exact.
    const std::vector<Moments::Part> again = narrow.FromTheOtherKind(back);
    EXPECT_TRUE(torch::equal(again[0].values, codes[0].values));
    EXPECT_TRUE(torch::equal(again[1].values, codes[1].values));
  }
}

}  // namespace
}  // namespace espalier
