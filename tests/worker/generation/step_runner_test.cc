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
  std::vector<Case> cases = {{"cpu", torch::kFloat, 1e-5}};
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

INSTANTIATE_TEST_SUITE_P(Devices, Steps, testing::ValuesIn(Cases()), [](const auto& info) {
  return info.param.device + torch::toString(info.param.type);
});

}  // namespace
}  // namespace espalier
