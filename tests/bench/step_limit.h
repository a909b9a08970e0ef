// StepLimit: how fast a training step would be that consisted of its matrix products alone, each at
// the best rate that any way to compute it reaches on this processor now. Used by
// tests/bench/step_bench.cc. One thread; the products use all of OpenMP's.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "worker/formats/decoder_config.h"
#include "worker/kernels/gemm.h"

namespace espalier::bench {

// Products of one shape in the step: op(a)[m, k] * op(b)[k, n].
struct StepProduct {
  std::string name;
  cpu::GemmShape shape;
  cpu::Op a = cpu::Op::kPlain;
  cpu::Op b = cpu::Op::kPlain;
  int64_t together = 1;       // independent ones that are computed at once: the heads of attention
  double times = 1;           // in a step; a half for what a causal mask leaves of attention
  bool float_result = false;  // added to, as gradients of weights are; else in the step's type
  double Flops() const { return 2.0 * shape.m * shape.n * shape.k * together; }
};

// All of a step over `batch` sequences of `time` tokens, forward and backward; nothing is computed
// twice. `rank`: of adapters on all projections, which alone are trained; 0: all is trained.
std::vector<StepProduct> ProductsOfStep(const DecoderConfig& config, int64_t batch, int64_t time,
                                        int64_t rank = 0);

// One way to compute a product, with memory of its own.
struct Way {
  std::string name;
  std::function<void()> run;
};

// Fills an operand of either type with numbers near 0.01, as multiplying zeros would take less
// power.
void FillOperand(void* memory, size_t bytes);

// By the interface that the engine uses, and by the processor's library at its best: with its own
// layouts of the operands, whose making is not counted, and with plain ones. The latter are in
// vendor_products_dnnl.cc, and none in vendor_products_none.cc.
std::vector<Way> EngineWays(const StepProduct& product, bool bf16);
std::vector<Way> VendorWays(const StepProduct& product, bool bf16);

struct MeasuredProduct {
  StepProduct product;
  std::string best;
  double seconds = 0;         // of the best way, once: the median of its best round
  double engine_seconds = 0;  // through the engine's interface
};

struct StepLimit {
  std::vector<MeasuredProduct> products;
  double seconds = 0;  // of the step
  double flops = 0;
};

// Each way of a product runs for `least`, in rounds.
StepLimit MeasureStepLimit(const std::vector<StepProduct>& products, bool bf16,
                           absl::Duration least = absl::Milliseconds(200));

}  // namespace espalier::bench
