#include <dnnl.hpp>
#include <map>
#include <new>
#include <stdexcept>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "worker/kernels/gemm.h"

namespace espalier::cpu {
namespace {

using dnnl::memory;

void ThrowIfFailed(dnnl_status_t status, const GemmShape& shape) {
  if (status == dnnl_success) return;
  if (status == dnnl_out_of_memory) throw std::bad_alloc();
  throw std::runtime_error(absl::StrCat("oneDNN refused a product of ", shape.m, " x ", shape.k,
                                        " and ", shape.k, " x ", shape.n, ": status ",
                                        static_cast<int>(status)));
}

memory::desc Describe(int64_t rows, int64_t columns, int64_t stride, Op op,
                      memory::data_type type) {
  const bool plain = op == Op::kPlain;
  return {{rows, columns}, type, plain ? memory::dims{stride, 1} : memory::dims{1, stride}};
}

// A product prepared for its shape; a few dozen shapes make up a training step. Where its matrices
// are is said at each use, which takes less time than new arguments.
struct Product {
  memory a, b, c;
  dnnl::matmul primitive;
};

// One thread's products and what runs them.
class Products {
 public:
  template <typename Real>
  void Run(const GemmShape& shape, const Matrix<Bf16>& a, const Matrix<Bf16>& b, bool add, Real* c,
           int64_t c_stride) {
    constexpr auto kType = sizeof(Real) == 4 ? memory::data_type::f32 : memory::data_type::bf16;
    const Key key{shape.m,  shape.n, shape.k,  a.stride, a.op,
                  b.stride, b.op,    c_stride, add,      sizeof(Real)};
    auto found = products_.find(key);
    if (found == products_.end()) {
      if (products_.size() >= kMost) products_.clear();
      const auto bf16 = memory::data_type::bf16;
      found =
          products_
              .emplace(key, Prepare(Describe(shape.m, shape.k, a.stride, a.op, bf16),
                                    Describe(shape.k, shape.n, b.stride, b.op, bf16),
                                    Describe(shape.m, shape.n, c_stride, Op::kPlain, kType), add))
              .first;
    }
    Product& product = found->second;
    product.a.set_data_handle(const_cast<Bf16*>(a.data));
    product.b.set_data_handle(const_cast<Bf16*>(b.data));
    product.c.set_data_handle(c);
    const dnnl_exec_arg_t arguments[] = {{DNNL_ARG_SRC, product.a.get()},
                                         {DNNL_ARG_WEIGHTS, product.b.get()},
                                         {DNNL_ARG_DST, product.c.get()}};
    ThrowIfFailed(dnnl_primitive_execute(product.primitive.get(), stream_.get(),
                                         std::size(arguments), arguments),
                  shape);
    stream_.wait();
  }

 private:
  using Key =
      std::tuple<int64_t, int64_t, int64_t, int64_t, Op, int64_t, Op, int64_t, bool, size_t>;
  static constexpr size_t kMost = 512;

  Product Prepare(const memory::desc& a, const memory::desc& b, const memory::desc& c, bool add) {
    dnnl::primitive_attr attributes;
    if (add) {
      dnnl::post_ops sum;
      sum.append_sum(1.0F);
      attributes.set_post_ops(sum);
    }
#if DNNL_VERSION_MAJOR >= 3
    const dnnl::matmul::primitive_desc description(engine_, a, b, c, attributes);
#else
    const dnnl::matmul::primitive_desc description({a, b, c}, attributes, engine_);
#endif
    const auto place = [&](const memory::desc& of) {
      return memory(of, engine_, DNNL_MEMORY_NONE);
    };
    return {place(a), place(b), place(c), dnnl::matmul(description)};
  }

  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  std::map<Key, Product> products_;
};

template <typename Real>
bool Run(const GemmShape& shape, const Matrix<Bf16>& a, const Matrix<Bf16>& b, float beta, Real* c,
         int64_t c_stride) {
  if (!MultipliesBf16()) return false;
  ESPALIER_CHECK(beta == 0 || beta == 1, "products of bfloat16 numbers add once or not at all");
  try {
    thread_local Products products;
    products.Run(shape, a, b, beta == 1, c, c_stride);
  } catch (const dnnl::error& error) {
    ThrowIfFailed(error.status, shape);
  }
  return true;
}

}  // namespace

void Gemm(const GemmShape& shape, const Matrix<float>& a, const Matrix<float>& b, float beta,
          float* c, int64_t c_stride) {
  if (shape.m == 0 || shape.n == 0) return;
  ThrowIfFailed(dnnl_sgemm(static_cast<char>(a.op), static_cast<char>(b.op), shape.m, shape.n,
                           shape.k, 1.0F, a.data, a.stride, b.data, b.stride, beta, c, c_stride),
                shape);
}

// oneDNN is slow where the processor does not.
bool MultipliesBf16() {
  static const bool has_units = [] {
    const auto isa = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
    const auto wanted = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_bf16);
    return (isa & wanted) == wanted;
  }();
  return has_units;
}

bool FastGemm(const GemmShape& shape, const Matrix<Bf16>& a, const Matrix<Bf16>& b, float beta,
              float* c, int64_t c_stride) {
  return Run(shape, a, b, beta, c, c_stride);
}

bool FastGemm(const GemmShape& shape, const Matrix<Bf16>& a, const Matrix<Bf16>& b, float beta,
              Bf16* c, int64_t c_stride) {
  return Run(shape, a, b, beta, c, c_stride);
}

}  // namespace espalier::cpu
