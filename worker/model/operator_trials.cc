#include "worker/model/operator_trials.h"

#include <utility>

#include "worker/model/key_value_cache.h"
#include "worker/ops/ops.h"
#include "worker/tensor/transfers.h"

namespace espalier {
namespace {

using torch::Tensor;

constexpr int64_t kLong = 33'000;

// Numbers that look random, the same everywhere: about as large as those of a standard normal
// distribution.
Tensor Numbers(std::vector<int64_t> shape, double phase) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  const Tensor angle = torch::arange(count, torch::kLong).remainder(100'003).to(torch::kFloat);
  return (angle * (0.7 + 0.01 * phase) + phase).sin().mul(1.4).view(shape);
}

// Inputs of a trial on its device, of which gradients are wanted.
class Inputs {
 public:
  explicit Inputs(const TrialPlace& place) : device_(place.device), type_(place.type) {}

  Tensor Activations(std::vector<int64_t> shape) {
    return Leaf(Numbers(std::move(shape), ++phase_).to(type_));
  }
  // A leaf whose memory begins within a larger one, with a gradient in fp32 to add to.
  Tensor Weight(std::vector<int64_t> shape) {
    const Tensor whole = Numbers(std::move(shape), ++phase_);
    const Tensor flat = torch::zeros({whole.numel() + 24}, whole.options().dtype(type_));
    flat.narrow(0, 24, whole.numel()).copy_((whole * 0.2).flatten());
    return WithGradient(flat.to(device_).narrow(0, 24, whole.numel()).view(whole.sizes()));
  }
  // Weights [rows, columns] that lie side by side, last first, as those of a layer do.
  std::vector<Tensor> Neighbours(const std::vector<int64_t>& rows, int64_t columns) {
    int64_t end = 0;
    for (const int64_t count : rows) end += count;
    const Tensor flat = (Numbers({end, columns}, ++phase_) * 0.2).to(type_).to(device_);
    const Tensor gradient = torch::zeros({end, columns}, SumOptions());
    std::vector<Tensor> weights;
    for (const int64_t count : rows) {
      end -= count;
      const Tensor weight = flat.narrow(0, end, count).variable_data().set_requires_grad(true);
      weight.mutable_grad() = gradient.narrow(0, end, count);
      leaves_.push_back(weight);
      weights.push_back(weight);
    }
    return weights;
  }
  Tensor Norm(int64_t size) {
    return WithGradient((Numbers({size}, ++phase_) + 2).to(Wide()).to(device_));
  }

  // out, and the gradients of half its square, in which nothing cancels; of a scalar its own.
  std::vector<Tensor> Results(const Tensor& out) {
    out.backward(out.dim() == 0 ? Tensor() : out.detach().clone());
    std::vector<Tensor> results = {out.detach()};
    for (const Tensor& leaf : leaves_) results.push_back(leaf.grad());
    return results;
  }

 private:
  torch::ScalarType Wide() const {
    return type_ == torch::kDouble ? torch::kDouble : torch::kFloat;
  }
  torch::TensorOptions SumOptions() const {
    return torch::TensorOptions().dtype(Wide()).device(device_);
  }
  Tensor Leaf(const Tensor& host) {
    leaves_.push_back(host.to(device_).set_requires_grad(true));
    return leaves_.back();
  }
  Tensor WithGradient(const Tensor& value) {
    const Tensor leaf = value.variable_data().set_requires_grad(true);
    leaf.mutable_grad() = torch::zeros(leaf.sizes(), SumOptions());
    leaves_.push_back(leaf);
    return leaf;
  }

  torch::Device device_;
  torch::ScalarType type_;
  double phase_ = 0;
  std::vector<Tensor> leaves_;
};

std::vector<Tensor> ManyRows(const TrialPlace& place) {
  Inputs inputs(place);
  const Tensor x = inputs.Activations({kLong, 32});
  return inputs.Results(ops::Linear(x, {inputs.Weight({32, 32}), inputs.Weight({32})}));
}

std::vector<Tensor> ManyWords(const TrialPlace& place) {
  Inputs inputs(place);
  const Tensor hidden = inputs.Activations({24, 32});
  const Tensor targets = (torch::arange(24, torch::kLong) * 1361).to(place.device);
  return inputs.Results(ops::LossSum(hidden, inputs.Weight({kLong, 32}), targets, {}));
}

std::vector<Tensor> Attention(const TrialPlace& place) {
  const int64_t time = place.positions;
  DecoderConfig config;
  config.head_dim = 16;
  Inputs inputs(place);
  const ops::Heads x{inputs.Activations({2, time, 4, 16}), inputs.Activations({2, time, 2, 16}),
                     inputs.Activations({2, time, 2, 16})};
  return inputs.Results(ops::RotaryAttention(x, MakeRopeTable(config, time, place.device),
                                             time - 30, c10::make_intrusive<CausalMasks>()));
}

// In examples of 23 columns, and of 24 in the other row.
std::vector<Tensor> PackedAttention(const TrialPlace& place) {
  const int64_t time = place.positions;
  DecoderConfig config;
  config.head_dim = 16;
  Inputs inputs(place);
  const ops::Heads x{inputs.Activations({2, time, 4, 16}), inputs.Activations({2, time, 2, 16}),
                     inputs.Activations({2, time, 2, 16})};
  const Tensor column = torch::arange(time, torch::kLong);
  const Tensor begins =
      torch::stack({column - column.remainder(23), column - column.remainder(24)});
  const SharedRows shared{begins.to(place.device), 24};
  const auto masks = c10::make_intrusive<CausalMasks>(shared.begins);
  const RopeTable table = MakeRopeTable(config, time, place.device);
  return inputs.Results(ops::RotaryAttention(x, table.At(shared.Positions().flatten()), 0, masks));
}

std::vector<Tensor> NormedProducts(const TrialPlace& place) {
  Inputs inputs(place);
  const Tensor x = inputs.Activations({2, 40, 32});
  const std::vector<Tensor> w = inputs.Neighbours({48, 24, 24}, 32);
  const auto y =
      ops::NormLinears(x.to(ops::ResidualType(place.device, place.type)),
                       {inputs.Norm(32), {}, 1e-5}, {{w[0], {}}, {w[1], {}}, {w[2], {}}});
  return inputs.Results(torch::cat({y.products[0], y.products[1], y.products[2]}, -1));
}

std::vector<Tensor> GatedProducts(const TrialPlace& place) {
  Inputs inputs(place);
  const Tensor gate = inputs.Activations({2, 40, 48}), up = inputs.Activations({2, 40, 48});
  const Tensor residual = inputs.Activations({2, 40, 32});
  return inputs.Results(
      ops::SwiGluLinearAdd(gate, up, {inputs.Weight({32, 48}), {}},
                           residual.to(ops::ResidualType(place.device, place.type))));
}

std::vector<Tensor> CentredProducts(const TrialPlace& place) {
  Inputs inputs(place);
  const Tensor x = inputs.Activations({2, 40, 32});
  const ops::Norm norm{inputs.Norm(32), inputs.Norm(32), 1e-5};
  const auto y =
      ops::NormLinears(x.to(ops::ResidualType(place.device, place.type)), norm,
                       {{inputs.Weight({32, 96}), inputs.Weight({96}), /*transposed=*/true}});
  const std::vector<Tensor> parts = ops::Split(y.products[0], {32, 48, 16});
  return inputs.Results(torch::cat({parts[1], parts[0], parts[2]}, -1));
}

std::vector<Tensor> GeluProducts(const TrialPlace& place) {
  Inputs inputs(place);
  const Tensor x = inputs.Activations({2, 40, 48}), residual = inputs.Activations({2, 40, 32});
  return inputs.Results(
      ops::GeluLinearAdd(x, {inputs.Weight({48, 32}), inputs.Weight({32}), /*transposed=*/true},
                         residual.to(ops::ResidualType(place.device, place.type))));
}

std::vector<Tensor> Positions(const TrialPlace& place) {
  Inputs inputs(place);
  const Tensor x = inputs.Activations({2, 40, 32});
  return inputs.Results(ops::AddPositions(x, inputs.Weight({50, 32}), 0));
}

// A low-rank map beside each of several weights that lie side by side, and one alone.
std::vector<Tensor> AdaptedProducts(const TrialPlace& place) {
  Inputs inputs(place);
  const Tensor x = inputs.Activations({2, 40, 32});
  const std::vector<Tensor> w = inputs.Neighbours({48, 24}, 32);
  const auto adapted = [&](const Tensor& weight) {
    const ops::Adapter adapter{inputs.Weight({4, weight.size(1)}),
                               inputs.Weight({weight.size(0), 4}), /*scale=*/2};
    return ops::Projection{weight, {}, /*transposed=*/false, adapter};
  };
  const auto residual = x.to(ops::ResidualType(place.device, place.type));
  const auto y =
      ops::NormLinears(residual, {inputs.Norm(32), {}, 1e-5}, {adapted(w[0]), adapted(w[1])});
  const Tensor alone =
      ops::LinearAdd(y.products[0].contiguous(), adapted(inputs.Weight({32, 48})), residual);
  return inputs.Results(torch::cat({y.products[1], alone.to(place.type)}, -1));
}

// Prompts of their own lengths, then a token each, of which the second attends to the first.
std::vector<Tensor> KeptPositions(const TrialPlace& place) {
  const torch::NoGradGuard no_grad;
  constexpr int64_t kRows = 3, kWindow = 70;
  DecoderConfig config;
  config.layers = 1;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 16;
  const RopeTable rope = MakeRopeTable(config, 140, place.device);
  KeyValueCache cache(config, {kRows, 140},
                      torch::TensorOptions().dtype(place.type).device(place.device));
  double phase = 0;
  const auto heads = [&](int64_t positions, int64_t count) {
    return Numbers({1, positions, count, 16}, ++phase).to(place.type).to(place.device);
  };
  const auto masks = c10::make_intrusive<CausalMasks>();
  std::vector<Tensor> results;
  const auto pass = [&](int64_t positions) {
    const ops::Heads x{heads(positions, 4), heads(positions, 2), heads(positions, 2)};
    const RopeTable angles = cache.is_step() ? rope.At(cache.step_positions())
                                             : rope.Of(cache.prompt_begin(), positions);
    results.push_back(cache.Attend(0, x, angles, kWindow, masks));
    cache.Finish();
  };
  for (int64_t row = 0; row < kRows; ++row) {
    cache.BeginPrompt(row, 90 - 40 * row);
    pass(90 - 40 * row);
  }
  cache.BeginPrompt(1, 20);
  pass(20);
  for (int64_t step = 0; step < 2; ++step) {
    cache.BeginStep(kRows);
    pass(kRows);
  }
  return results;
}

// As of a token: one row, with a bias.
std::vector<Tensor> OneRow(const TrialPlace& place) {
  const torch::NoGradGuard no_grad;
  Inputs inputs(place);
  const Tensor x = inputs.Activations({1, 1, 32}), bias = inputs.Weight({48});
  return {ops::Linear(x, {inputs.Weight({48, 32}), bias}),
          ops::Linear(x, {inputs.Weight({32, 48}), bias, /*transposed=*/true})};
}

std::vector<Tensor> LookedUpRows(const TrialPlace& place) {
  Inputs inputs(place);
  const Tensor ids = (torch::arange(80, torch::kLong) * 7).remainder(40).view({2, 40});
  return inputs.Results(ops::Embedding(ids.to(place.device), inputs.Weight({40, 32})));
}

std::vector<Tensor> Copies(const TrialPlace& place) {
  const Tensor host = Numbers({70'000}, 1);
  const Tensor there =
      torch::zeros({80'000}, torch::TensorOptions().dtype(place.type).device(place.device));
  there.narrow(0, 9'000, 70'000).copy_(host);
  const Tensor back = torch::zeros({70'001});
  back.narrow(0, 1, 70'000).copy_(there.narrow(0, 9'000, 70'000));
  return {back, there};
}

// What of a supervision step says whether a sample halts, and what the step leaves.
std::vector<Tensor> Halting(const TrialPlace& place) {
  constexpr int64_t kRows = 40;
  Inputs inputs(place);
  const Tensor said = inputs.Norm(2 * kRows).view({kRows, 2});
  const Tensor known = said.detach();
  const Tensor ends = torch::arange(kRows, known.options()).remainder(2).ge(1);
  const Tensor promise =
      torch::where(ends, known.select(1, 0), known.amax(1)).sigmoid().unsqueeze(1);
  std::vector<Tensor> results = inputs.Results(at::softplus(said) - said * promise);
  Tensor left = torch::empty({kRows, 3}, known.options());
  at::cat_out(left, {known, promise}, 1);
  results.push_back(left);
  return results;
}

// In turn with what changes their source, and waited for when all are asked for.
std::vector<Tensor> CopiesInTurn(const TrialPlace& place) {
  constexpr int64_t kCopies = 4, kSize = int64_t{1} << 18;
  const torch::NoGradGuard no_grad;
  Transfers transfers(place.device);
  const Tensor there = transfers.ToDevice(Numbers({kSize}, 2)).to(place.type);
  const Tensor back = torch::zeros({kCopies, kSize}, place.type);
  std::vector<Transfers::Copy> copies;
  for (int64_t i = 0; i < kCopies; ++i) {
    copies.push_back(transfers.ToHost(there, back[i]));
    transfers.Join();
    there.mul_(0.5).add_(1);
  }
  for (const Transfers::Copy& copy : copies) copy.Wait();
  return {back, there};
}

}  // namespace

std::vector<OperatorTrial> OperatorTrials(Architecture architecture) {
  std::vector<OperatorTrial> trials = {
      {"a product of 33,000 rows, or its gradients,", ManyRows},
      {"the loss of a vocabulary of 33,000, or its gradients,", ManyWords},
      {"attention, or its gradients,", Attention},
      {"attention over packed rows, or its gradients,", PackedAttention},
      {"rows that are looked up, or their gradients,", LookedUpRows},
      {"a product with adapters, or its gradients,", AdaptedProducts},
      {"attention to keys and values that were kept", KeptPositions},
      {"a product of one row", OneRow},
      {"copies from the host and back", Copies},
      {"copies that follow what is computed", CopiesInTurn},
  };
  const std::vector<OperatorTrial> of_llama = {
      {"a norm with the products of what it gives, or their gradients,", NormedProducts},
      {"a gated product, or its gradients,", GatedProducts},
  };
  const std::vector<OperatorTrial> of_gpt2 = {
      {"a centred norm with the product of what it gives, or their gradients,", CentredProducts},
      {"a product of what GELU gives, or its gradients,", GeluProducts},
      {"learned positions, or their gradients,", Positions},
  };
  if (architecture == Architecture::kTrm) {
    trials.push_back({"what says whether a sample halts, or its gradients,", Halting});
  }
  const auto& own = architecture == Architecture::kGpt2 ? of_gpt2 : of_llama;
  trials.insert(trials.begin() + 3, own.begin(), own.end());
  return trials;
}

}  // namespace espalier
