// oneDNN's best for a product: a primitive that chooses the layouts of all three matrices, one on
// plain layouts, and for bfloat16 numbers also the product of floats.
#include <dnnl.hpp>
#include <memory>

#include "tests/bench/step_limit.h"

namespace espalier::bench {
namespace {

using cpu::Op;
using dnnl::memory;

enum class Layout { kPlain, kChosen };

memory::desc Describe(const StepProduct& product, int64_t rows, int64_t columns, Op op,
                      memory::data_type type, Layout layout) {
  const bool batched = product.together > 1;
  memory::dims sizes = {rows, columns};
  memory::dims strides = op == Op::kPlain ? memory::dims{columns, 1} : memory::dims{1, rows};
  if (batched) {
    sizes.insert(sizes.begin(), product.together);
    strides.insert(strides.begin(), rows * columns);
  }
  if (layout == Layout::kPlain) return {sizes, type, strides};
  return {sizes, type, memory::format_tag::any};
}

dnnl::matmul::primitive_desc Prepare(const memory::desc& a, const memory::desc& b,
                                     const memory::desc& c, const dnnl::engine& engine) {
#if DNNL_VERSION_MAJOR >= 3
  return {engine, a, b, c};
#else
  return {{a, b, c}, engine};
#endif
}

Way DnnlWay(const std::string& name, const StepProduct& product, memory::data_type type,
            memory::data_type result, Layout layout) {
  const int64_t m = product.shape.m, n = product.shape.n, k = product.shape.k;
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  const dnnl::matmul::primitive_desc description =
      Prepare(Describe(product, m, k, product.a, type, layout),
              Describe(product, k, n, product.b, type, layout),
              Describe(product, m, n, Op::kPlain, result, layout), engine);
  const auto filled = [&](const memory::desc& of) {
    memory made(of, engine);
    FillOperand(made.get_data_handle(), of.get_size());
    return made;
  };
  const std::unordered_map<int, memory> arguments = {
      {DNNL_ARG_SRC, filled(description.src_desc())},
      {DNNL_ARG_WEIGHTS, filled(description.weights_desc())},
      {DNNL_ARG_DST, filled(description.dst_desc())}};
  const auto run = [=, stream = std::make_shared<dnnl::stream>(engine),
                    primitive = dnnl::matmul(description)] {
    primitive.execute(*stream, arguments);
    stream->wait();
  };
  return {name, run};
}

}  // namespace

std::vector<Way> VendorWays(const StepProduct& product, bool bf16) {
  const auto f32 = memory::data_type::f32;
  const auto type = bf16 ? memory::data_type::bf16 : f32;
  const auto result = product.float_result ? f32 : type;
  std::vector<Way> ways;
  // Not every processor has products of bfloat16 numbers.
  const auto add = [&](const char* name, memory::data_type in, memory::data_type out,
                       Layout layout) {
    try {
      ways.push_back(DnnlWay(name, product, in, out, layout));
    } catch (const dnnl::error& error) {
      if (error.status != dnnl_unimplemented) throw;
    }
  };
  add("oneDNN, own layouts", type, result, Layout::kChosen);
  add("oneDNN", type, result, Layout::kPlain);
  if (bf16) add("oneDNN, fp32", f32, f32, Layout::kChosen);
  return ways;
}

}  // namespace espalier::bench
