// Steps of sequences that come and go give the logits of the decoder, recorded or not. On a machine
// without CUDA none is recorded.
#include "worker/generation/step_runner.h"

#include <gtest/gtest.h>

#include "tests/worker/support/tiny_model.h"
#include "worker/tensor/torch_compat.h"

namespace espalier {
namespace {

using torch::Tensor;

struct Case {
  std::string device;
  torch::ScalarType type;
  double tolerance;
};

std::vector<Case> Cases() {
  std::vector<Case> cases = {{"cpu", torch::kFloat, 1e-4}};
  if (HasCuda()) {
    cases.push_back({"cuda", torch::kFloat, 1e-3});
    cases.push_back({"cuda", torch::kBFloat16, 0.05});
  }
  return cases;
}

class Steps : public testing::TestWithParam<Case> {};

TEST_P(Steps, GiveTheLogitsOfTheDecoderHoweverManyRun) {
  const auto& [device, type, tolerance] = GetParam();
  for (const bool gpt2 : {false, true}) {
    DecoderConfig config = gpt2 ? TinyGpt2Config() : TinyModelConfig();
    config.hidden_size = 64;
    config.head_dim = 16;
    TinyModel model(config, {.device = torch::Device(device), .compute_type = type});
    StepRunner runner(*model.decoder);
    KeyValueCache cache = *model.decoder->MakeCache({.rows = 3, .positions = 40});
    const Tensor ids = SomeIds(3, 40, 23);
    torch::NoGradGuard no_grad;
    for (int64_t row = 0; row < 3; ++row) {
      cache.BeginPrompt(row, 2 + row);
      model.decoder->Keep(ids[row].narrow(0, 0, 2 + row).to(model.decoder->device()), cache);
    }
    for (int64_t step = 0; step < 30; ++step) {
      const int64_t rows = step % 10 < 6 ? 3 : 2;
      std::vector<int64_t> last;
      for (int64_t row = 0; row < rows; ++row) {
        last.push_back(ids[row][cache.length(row)].item<int64_t>());
      }
      const Tensor logits = runner.NextLogits(last, cache);
      ASSERT_EQ(logits.sizes(), (std::vector<int64_t>{rows, 23}));
      for (int64_t row = 0; row < rows; ++row) {
        const int64_t length = cache.length(row);
        const Tensor seen = ids[row].narrow(0, 0, length).unsqueeze(0);
        const Tensor expected =
            model.decoder->Logits(seen.to(model.decoder->device()))[0][length - 1]
                .to(torch::kFloat)
                .cpu();
        EXPECT_LT((logits[row] - expected).norm().item<double>(),
                  tolerance * expected.norm().item<double>())
            << "step " << step << ", row " << row;
      }
    }
  }
}

// Enough ids for several parts of a row on CUDA, where the first two are drawn on the device.
TEST_P(Steps, DrawTheIdsThatSamplersDrawFromTheirLogits) {
  const auto& [device, type, tolerance] = GetParam();
  DecoderConfig config = TinyModelConfig();
  config.vocab_size = 5000;
  config.hidden_size = 64;
  config.head_dim = 16;
  TinyModel model(config, {.device = torch::Device(device), .compute_type = type});
  const std::vector<SampleOptions> options = {{}, {.temperature = 0}, {.top_k = 5}, {.min_p = 0.1}};
  std::vector<Sampler> by_ids, by_logits;
  for (const SampleOptions& one : options) {
    by_ids.emplace_back(one, 9, std::vector<int32_t>{});
    by_logits.emplace_back(one, 9, std::vector<int32_t>{});
  }
  std::vector<Sampler*> samplers;
  for (Sampler& one : by_ids) samplers.push_back(&one);
  StepRunner runner(*model.decoder), other(*model.decoder);
  KeyValueCache cache = *model.decoder->MakeCache({.rows = 4, .positions = 40});
  KeyValueCache others = *model.decoder->MakeCache({.rows = 4, .positions = 40});
  std::vector<int64_t> last = {1, 2, 3, 4};
  torch::NoGradGuard no_grad;
  int64_t differ = 0;
  for (int64_t step = 0; step < 12; ++step) {
    const std::vector<std::optional<int32_t>> ids = runner.NextIds(last, samplers, cache);
    const Tensor logits = other.NextLogits(last, others).contiguous();
    for (size_t row = 0; row < ids.size(); ++row) {
      float* const values = logits.data_ptr<float>() + 5000 * row;
      const std::optional<int32_t> expected = by_logits[row].Next({values, 5000});
      ASSERT_TRUE(ids[row].has_value() && expected.has_value());
      differ += *ids[row] == *expected ? 0 : 1;
      last[row] = *expected;
    }
  }
  EXPECT_LE(differ, 1);  // a rounding may move a border, rarely
}

INSTANTIATE_TEST_SUITE_P(Devices, Steps, testing::ValuesIn(Cases()), [](const auto& info) {
  return info.param.device + torch::toString(info.param.type);
});

}  // namespace
}  // namespace espalier
