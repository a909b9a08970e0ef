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

template <typename Real>
constexpr memory::data_type kTypeOf = sizeof(Real) == sizeof(float) ? memory::data_type::f32
                                                                    : memory::data_type::bf16;

// A product prepared for its shape; a few dozen shapes make up a training step. Where its matrices
// are is said at each use, which takes less time than new arguments.
struct Product {
  memory a, b, c;
  dnnl::matmul primitive;
};

// One thread's products and what runs them.
class Products {
 public:
  template <typename Real, typename Result>
  void Run(const GemmShape& shape, const Matrix<Real>& a, const Matrix<Real>& b, bool add,
           Result* c, int64_t c_stride) {
    const Key key{shape.m, shape.n,  shape.k, a.stride,     a.op,          b.stride,
                  b.op,    c_stride, add,     sizeof(Real), sizeof(Result)};
    auto found = products_.find(key);
    if (found == products_.end()) {
      if (products_.size() >= kMost) products_.clear();
      found =
          products_
              .emplace(
                  key,
                  Prepare(Describe(shape.m, shape.k, a.stride, a.op, kTypeOf<Real>),
                          Describe(shape.k, shape.n, b.stride, b.op, kTypeOf<Real>),
                          Describe(shape.m, shape.n, c_stride, Op::kPlain, kTypeOf<Result>), add))
              .first;
    }
    Product& product = found->second;
    product.a.set_data_handle(const_cast<Real*>(a.data));
    product.b.set_data_handle(const_cast<Real*>(b.data));
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
  using Key = std::tuple<int64_t, int64_t, int64_t, int64_t, Op, int64_t, Op, int64_t, bool, size_t,
                         size_t>;
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

template <typename Real, typename Result>
void RunPrepared(const GemmShape& shape, const Matrix<Real>& a, const Matrix<Real>& b, bool add,
                 Result* c, int64_t c_stride) {
  try {
    thread_local Products products;
    products.Run(shape, a, b, add, c, c_stride);
  } catch (const dnnl::error& error) {
    ThrowIfFailed(error.status, shape);
  }
}

template <typename Result>
bool RunBf16(const GemmShape& shape, const Matrix<Bf16>& a, const Matrix<Bf16>& b, float beta,
             Result* c, int64_t c_stride) {
  if (!MultipliesBf16()) return false;
  ESPALIER_CHECK(beta == 0 || beta == 1, "products of bfloat16 numbers add once or not at all");
  RunPrepared(shape, a, b, beta == 1, c, c_stride);
  return true;
}

// A weight's gradient: sums over many rows, of which `a` has the columns. dnnl_sgemm takes up to
// twice as long for these as a prepared product, which is slower for the others.
bool SumsOverRows(const GemmShape& shape, const Matrix<float>& a, const Matrix<float>& b) {
  constexpr int64_t kManyRows = 256;
  return a.op == Op::kTranspose && b.op == Op::kPlain && shape.k >= kManyRows;
}

}  // namespace

void Gemm(const GemmShape& shape, const Matrix<float>& a, const Matrix<float>& b, float beta,
          float* c, int64_t c_stride) {
  if (shape.m == 0 || shape.n == 0) return;
  if ((beta == 0 || beta == 1) && SumsOverRows(shape, a, b)) {
    return RunPrepared(shape, a, b, beta == 1, c, c_stride);
  }
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
  return RunBf16(shape, a, b, beta, c, c_stride);
}

bool FastGemm(const GemmShape& shape, const Matrix<Bf16>& a, const Matrix<Bf16>& b, float beta,
              Bf16* c, int64_t c_stride) {
  return RunBf16(shape, a, b, beta, c, c_stride);
}

}  // namespace espalier::cpu
