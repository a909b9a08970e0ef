#include "tests/bench/step_limit.h"

#include <algorithm>
#include <memory>
#include <tuple>

#include "common/base/clock.h"
#include "worker/kernels/parallel.h"

namespace espalier::bench {
namespace {

using cpu::Bf16;
using cpu::Op;

constexpr int kRounds = 3;

// Adds a product, or its times to those of one that is the same but for its name.
void Add(const StepProduct& product, std::vector<StepProduct>& products) {
  const auto key = [](const StepProduct& of) {
    return std::make_tuple(of.shape.m, of.shape.n, of.shape.k, of.a, of.b, of.together,
                           of.float_result);
  };
  for (StepProduct& known : products) {
    if (key(known) != key(product)) continue;
    known.name += "; " + product.name;
    known.times += product.times;
    return;
  }
  products.push_back(product);
}

// What multiplies `rows` rows by weights [out, in].
struct Projection {
  std::string name;
  int64_t rows, out, in;
  double times;
};

// y = x w', dx = dy w.
void AddFrozen(const Projection& p, std::vector<StepProduct>& products) {
  Add({.name = p.name, .shape = {p.rows, p.out, p.in}, .b = Op::kTranspose, .times = p.times},
      products);
  Add({.name = p.name + " dx", .shape = {p.rows, p.in, p.out}, .times = p.times}, products);
}

// dw += dy' x.
void AddGradient(const Projection& p, std::vector<StepProduct>& products) {
  Add({.name = p.name + " dw",
       .shape = {p.out, p.in, p.rows},
       .a = Op::kTranspose,
       .times = p.times,
       .float_result = true},
      products);
}

// With the gradient of the weights; with a rank, that of adapters A [rank, in] and B [out, rank]
// instead: x A' and B of it are projections, too.
void AddProjection(const Projection& p, int64_t rank, std::vector<StepProduct>& products) {
  AddFrozen(p, products);
  if (rank == 0) return AddGradient(p, products);
  for (const Projection& adapter : {Projection{p.name + " a", p.rows, rank, p.in, p.times},
                                    Projection{p.name + " b", p.rows, p.out, rank, p.times}}) {
    AddFrozen(adapter, products);
    AddGradient(adapter, products);
  }
}

void AddAttention(const DecoderConfig& config, int64_t batch, int64_t time,
                  std::vector<StepProduct>& products) {
  StepProduct product{.name = "attention q k', dout v'",
                      .shape = {time, time, config.head_dim},
                      .b = Op::kTranspose,
                      .together = batch * config.heads,
                      .times = 2 * 0.5 * static_cast<double>(config.layers)};
  Add(product, products);
  product.name = "attention p v, dscores k";
  product.shape = {time, config.head_dim, time};
  product.b = Op::kPlain;
  Add(product, products);
  product.name = "attention p' dout, dscores' q";
  product.a = Op::kTranspose;
  Add(product, products);
}

template <typename Real>
struct Operands {
  explicit Operands(const StepProduct& product)
      : a(product.together * product.shape.m * product.shape.k),
        b(product.together * product.shape.k * product.shape.n) {
    FillOperand(a.data(), a.size() * sizeof(Real));
    FillOperand(b.data(), b.size() * sizeof(Real));
  }
  std::vector<Real> a, b;
};

template <typename Real, typename Result>
Way EngineWay(const std::string& name, const StepProduct& product) {
  const auto memory = std::make_shared<Operands<Real>>(product);
  const auto result =
      std::make_shared<std::vector<Result>>(product.together * product.shape.m * product.shape.n);
  const auto run = [=] {
    const int64_t m = product.shape.m, n = product.shape.n, k = product.shape.k;
    const float beta = product.float_result ? 1.0F : 0.0F;
    const auto one = [&](int64_t i) {
      const int64_t a_stride = product.a == Op::kPlain ? k : m;
      const int64_t b_stride = product.b == Op::kPlain ? n : k;
      cpu::Gemm(product.shape, cpu::Matrix<Real>{memory->a.data() + i * m * k, a_stride, product.a},
                cpu::Matrix<Real>{memory->b.data() + i * k * n, b_stride, product.b}, beta,
                result->data() + i * m * n, n);
    };
    if (product.together == 1) return one(0);
    cpu::ParallelFor(product.together, one);
  };
  return {name, run};
}

// The median of runs that take `least` together, after one that is not counted.
double SecondsOf(const Way& way, absl::Duration least) {
  way.run();
  std::vector<double> seconds;
  const absl::Duration begin = RealClock().Monotonic();
  while (seconds.empty() || RealClock().Monotonic() - begin < least) {
    const absl::Duration start = RealClock().Monotonic();
    way.run();
    seconds.push_back(absl::ToDoubleSeconds(RealClock().Monotonic() - start));
  }
  std::nth_element(seconds.begin(), seconds.begin() + seconds.size() / 2, seconds.end());
  return seconds[seconds.size() / 2];
}

// Keeps what is better than before.
void Measure(MeasuredProduct& measured, bool bf16, absl::Duration least) {
  const auto consider = [&](const Way& way, bool engine) {
    const double seconds = SecondsOf(way, least);
    if (engine && (measured.best.empty() || seconds < measured.engine_seconds)) {
      measured.engine_seconds = seconds;
    }
    if (!measured.best.empty() && seconds >= measured.seconds) return;
    measured.best = way.name;
    measured.seconds = seconds;
  };
  for (const Way& way : EngineWays(measured.product, bf16)) consider(way, true);
  for (const Way& way : VendorWays(measured.product, bf16)) consider(way, false);
}

}  // namespace

std::vector<StepProduct> ProductsOfStep(const DecoderConfig& config, int64_t batch, int64_t time,
                                        int64_t rank) {
  const int64_t rows = batch * time, width = config.hidden_size;
  const int64_t query = config.heads * config.head_dim, key = config.kv_heads * config.head_dim;
  const int64_t hidden = config.intermediate_size;
  const auto layers = static_cast<double>(config.layers);
  std::vector<StepProduct> products;
  AddProjection({"q", rows, query, width, layers}, rank, products);
  AddProjection({"k, v", rows, key, width, 2 * layers}, rank, products);
  AddAttention(config, batch, time, products);
  AddProjection({"o", rows, width, query, layers}, rank, products);
  const double inner = config.architecture == Architecture::kGpt2 ? 1 : 2;  // of SwiGLU two
  AddProjection({"gate, up", rows, hidden, width, inner * layers}, rank, products);
  AddProjection({"down", rows, width, hidden, layers}, rank, products);
  const Projection head{"head", rows, config.vocab_size, width, 1};
  AddFrozen(head, products);
  if (rank == 0) AddGradient(head, products);
  return products;
}

void FillOperand(void* memory, size_t bytes) {
  auto* halves = static_cast<uint16_t*>(memory);
  uint32_t state = 1;
  for (size_t i = 0; i < bytes / sizeof(uint16_t); ++i) {
    state = state * 1664525 + 1013904223;  // Numerical Recipes' generator
    halves[i] = static_cast<uint16_t>(0x3c00U | (state >> 24) | (state >> 8 & 0x8000U));
  }
}

std::vector<Way> EngineWays(const StepProduct& product, bool bf16) {
  if (!bf16) return {EngineWay<float, float>("engine", product)};
  if (product.float_result) return {EngineWay<Bf16, float>("engine", product)};
  return {EngineWay<Bf16, Bf16>("engine", product)};
}

StepLimit MeasureStepLimit(const std::vector<StepProduct>& products, bool bf16,
                           absl::Duration least) {
  StepLimit limit;
  for (const StepProduct& product : products) limit.products.push_back({.product = product});
  // In rounds, as other programs disturb for a while.
  for (int round = 0; round < kRounds; ++round) {
    for (MeasuredProduct& measured : limit.products) Measure(measured, bf16, least / kRounds);
  }
  for (const MeasuredProduct& measured : limit.products) {
    limit.seconds += measured.product.times * measured.seconds;
    limit.flops += measured.product.times * measured.product.Flops();
  }
  return limit;
}

}  // namespace espalier::bench
