// The gradient of a step does not depend on how its sequences are divided among ranks when the rows
// that are looked up travel apart, and all ranks get the same bits: on every device of the machine.
#include "worker/sync/lookup_exchange.h"

#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "tests/worker/support/tiny_model.h"
#include "worker/collective/in_process.h"
#include "worker/sync/gradient_exchange.h"
#include "worker/tensor/torch_compat.h"

namespace espalier {
namespace {

using torch::Tensor;

constexpr int64_t kTime = 12;

DecoderConfig ConfigOf(bool tied) {
  DecoderConfig config = TinyModelConfig();
  config.vocab_size = 200;
  config.hidden_size = 32;
  config.head_dim = 8;
  config.tie_word_embeddings = tied;
  return config;
}

// Row i of a step: ids that rows share, and some of its own.
Tensor RowOf(int64_t i) {
  return torch::arange(kTime + 1, torch::kLong).mul(3 + 2 * i).add(11 * i).remainder(60);
}

// What a table's gradient is kept as.
constexpr auto kWhole = EmbeddingGradient::kDense;
constexpr auto kRows = EmbeddingGradient::kRowsApart;

// One rank: three steps of the sequences [begin, end), without an update.
class Replica {
 public:
  Replica(const DecoderConfig& config, Collective& collective, WireType wire,
          const Parameters::Options& options = Trained(kWhole))
      : device_(options.device),
        parameters_(*Parameters::Create(config, options)),
        decoder_(config, parameters_),
        host_(FlatTensor::Zeros(parameters_.flat_gradient().ends(), {})),
        exchange_(collective, GradientExchange::MemoryOf(parameters_, host_),
                  BucketEnds(parameters_, parameters_.elements_before_embedding(), 3000), {wire}),
        lookups_(collective, parameters_, wire) {
    parameters_.Initialize(5, 0.3);
  }

  absl::StatusOr<Tensor> Step(int64_t begin, int64_t end) {
    parameters_.ZeroGradients();
    std::vector<Tensor> rows;
    for (int64_t i = begin; i < end; ++i) rows.push_back(RowOf(i));
    std::vector<int64_t> tokens;
    if (begin < end) {
      const Tensor all = torch::stack(rows);
      tokens.assign(all.data_ptr<int64_t>(), all.data_ptr<int64_t>() + all.numel());
    }
    absl::StatusOr<EmbeddingRows> lookup = lookups_.Begin(tokens);
    if (!lookup.ok()) return lookup.status();
    PassInputs inputs{.lookup = *lookup};
    for (size_t i = 0; i < rows.size(); ++i) {
      if (i + 1 == rows.size()) {
        inputs.gradients_final = [this](int64_t final) { exchange_.GradientsFinal(final); };
      }
      const Tensor row = rows[i].unsqueeze(0).to(device_);
      decoder_
          .LossSum(row.slice(1, 0, kTime).contiguous(), row.slice(1, 1).contiguous(), {}, inputs)
          .backward();
    }
    absl::Status status = exchange_.StartRest();
    status.Update(lookups_.StartSum());
    status.Update(exchange_.Finish());
    status.Update(lookups_.Finish());
    if (!status.ok()) return status;
    return WholeGradient();
  }

 private:
  Tensor WholeGradient() {
    const Tensor flat = parameters_.summed_gradient().Only().cpu();
    const int64_t looked_up = parameters_.elements() - flat.numel();
    Tensor whole = torch::cat({flat, torch::zeros({looked_up})});
    const LookupGradient& lookups = parameters_.lookup_gradient();
    for (size_t i = 0; i < lookups.ids.size(); ++i) {
      const Tensor row = lookups.rows[static_cast<int64_t>(i)].cpu();
      whole.narrow(0, flat.numel() + lookups.ids[i] * row.numel(), row.numel()).copy_(row);
    }
    return whole;
  }

  const torch::Device device_;
  Parameters parameters_;
  Decoder decoder_;
  FlatTensor host_;
  GradientExchange exchange_;
  LookupExchange lookups_;
};

struct Case {
  std::string device;
  bool tied;
  EmbeddingGradient untied;
  bool values_on_host = false;  // as with MPS
  Parameters::Options Options() const {
    Parameters::Options options = Trained(untied, torch::Device(device));
    options.values_on_host = values_on_host;
    return options;
  }
  // Without other ranks too.
  bool AlwaysLooksUp() const { return !tied && untied == kRows; }
  std::string Name() const {
    return device + (values_on_host ? "HostValues" : "") + (tied ? "Tied" : "Untied") +
           (untied == kRows ? "Rows" : "Whole");
  }
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.Name(); }

std::vector<Case> Cases() {
  std::vector<std::pair<std::string, bool>> places = {{"cpu", false}, {"cpu", true}};
  if (HasCuda()) places.emplace_back("cuda", false);
  if (HasMps()) places.emplace_back("mps", true);
  std::vector<Case> cases;
  for (const auto& [device, values_on_host] : places) {
    for (const bool tied : {false, true}) {
      for (const auto untied : {kWhole, kRows}) {
        // Parameters::ForTraining: rows apart wherever values are on the host.
        if (values_on_host && !tied && untied == kWhole) continue;
        cases.push_back({device, tied, untied, values_on_host});
      }
    }
  }
  return cases;
}

// The gradient of a step of six sequences on ranks that take those up to each of `ends`.
std::vector<Tensor> GradientsOf(const Case& c, const std::vector<int64_t>& ends, WireType wire) {
  const auto group = InProcessGroup(static_cast<int>(ends.size()), absl::Seconds(60));
  std::vector<Tensor> gradients(ends.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < ends.size(); ++rank) {
    threads.emplace_back([&, rank] {
      Replica replica(ConfigOf(c.tied), *group[rank], wire, c.Options());
      for (int step = 0; step < 3; ++step) {
        const auto gradient = replica.Step(rank == 0 ? 0 : ends[rank - 1], ends[rank]);
        ASSERT_TRUE(gradient.ok()) << gradient.status();
        EXPECT_TRUE(step == 0 || torch::equal(*gradient, gradients[rank])) << "step " << step;
        gradients[rank] = *gradient;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return gradients;
}

class Lookups : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Tables, Lookups, testing::ValuesIn(Cases()),
                         [](const auto& info) { return info.param.Name(); });

TEST_P(Lookups, TakeTheBytesThatTheGovernorIsTold) {
  const DecoderConfig config = ConfigOf(GetParam().tied);
  const auto bytes = [](const Tensor& tensor) {
    return tensor.numel() * static_cast<int64_t>(tensor.element_size());
  };
  for (const int ranks : {1, 2}) {
    const auto group = InProcessGroup(ranks, absl::Seconds(60));
    std::vector<std::thread> threads;
    for (const auto& collective : group) {
      threads.emplace_back([&] {
        Parameters parameters = *Parameters::Create(config, GetParam().Options());
        LookupExchange lookups(*collective, parameters, WireType::kFp32);
        for (const std::vector<int64_t>& tokens :
             {std::vector<int64_t>{}, {7}, {7, 7, 199, 0, 7}, {1, 2, 3, 4, 3}}) {
          const auto lookup = lookups.Begin(tokens);
          ASSERT_TRUE(lookup.ok()) << lookup.status();
          const int64_t taken =
              lookup->rows.defined()
                  ? bytes(lookup->rows) + bytes(lookup->rows.grad()) + bytes(lookup->row_of)
                  : 0;
          const bool needed = ranks > 1 || GetParam().AlwaysLooksUp();
          EXPECT_EQ(taken > 0, needed && !tokens.empty());
          EXPECT_EQ(lookups.Bytes(tokens), taken);
          EXPECT_TRUE(lookups.StartSum().ok());
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

TEST_P(Lookups, GiveTheGradientOfOneRankHoweverTheStepIsDivided) {
  Case whole = GetParam();
  whole.untied = kWhole;
  whole.values_on_host = false;
  const Tensor expected = GradientsOf(whole, {6}, WireType::kFp32)[0];
  const double scale = expected.abs().max().item<double>();
  for (const std::vector<int64_t>& ends :
       {std::vector<int64_t>{6}, {3, 6}, {1, 6}, {2, 2, 6}, {0, 6}, {6, 6, 6}}) {
    for (const WireType wire : {WireType::kFp32, WireType::kBf16}) {
      const std::vector<Tensor> gradients = GradientsOf(GetParam(), ends, wire);
      for (const Tensor& gradient : gradients) {
        EXPECT_TRUE(torch::equal(gradient, gradients[0])) << "replicas must stay equal";
      }
      const double difference = (gradients[0] - expected).abs().max().item<double>();
      EXPECT_LT(difference, scale * (wire == WireType::kFp32 ? 1e-6 : 1e-2));
    }
  }
}

// An untied embedding is most of what a small model would send.
TEST(LookupExchange, SendsTheRowsThatAreUsedNotTheTable) {
  const auto group = InProcessGroup(2, absl::Seconds(60));
  DecoderConfig config = ConfigOf(false);
  config.vocab_size = 20000;
  const int64_t table = config.vocab_size * config.hidden_size * 4;
  std::thread other(
      [&] { EXPECT_TRUE(Replica(config, *group[1], WireType::kFp32).Step(3, 6).ok()); });
  const int64_t before = group[0]->stats().bytes_sent;
  EXPECT_TRUE(Replica(config, *group[0], WireType::kFp32).Step(0, 3).ok());
  other.join();
  const int64_t head = table;  // as large as the table, and dense
  const int64_t sent = group[0]->stats().bytes_sent - before;
  EXPECT_GT(sent, head / 2);
  EXPECT_LT(sent, head + table / 4);
}

}  // namespace
}  // namespace espalier
