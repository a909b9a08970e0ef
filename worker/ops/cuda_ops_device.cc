#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <cmath>
#include <map>

#include "worker/kernels/cuda/cuda_kernels.h"
#include "worker/ops/cuda_ops.h"

namespace espalier::cuda {
namespace {

using torch::Tensor;

Type TypeOf(const torch::Tensor& x) {
  return x.scalar_type() == torch::kBFloat16 ? Type::kBf16
         : x.scalar_type() == torch::kHalf   ? Type::kHalf
                                             : Type::kFloat;
}

// Elements from one row to the next, of rows [..., C] that may be parts of wider ones. (A dimension
// of size 1 may have any stride.)
int64_t RowStride(const torch::Tensor& x) { return x.is_contiguous() ? x.size(-1) : x.stride(-2); }

RowShape RowsOf(const torch::Tensor& x) { return {x.numel() / x.size(-1), x.size(-1)}; }

// Makes the tensors' device the current one, on whose stream kernels go, and asks in the end
// whether they could be launched.
class Launch {
 public:
  explicit Launch(const torch::Tensor& x) : guard_(x.device()) {}
  void Check() const { C10_CUDA_KERNEL_LAUNCH_CHECK(); }
  Stream stream() const { return c10::cuda::getCurrentCUDAStream().stream(); }

 private:
  c10::cuda::CUDAGuard guard_;
};

// Kernels read four values at a time. A view of the flat buffer behind an odd number of biases is
// not aligned so.
void CheckAligned(const Tensor& weight) {
  const auto address = reinterpret_cast<uintptr_t>(weight.data_ptr());
  TORCH_CHECK(
      address % (4 * weight.element_size()) == 0,
      "a norm's weight is not aligned to four values; choose widths that are multiples of 4");
}

const float* Floats(const Tensor& x) { return x.const_data_ptr<float>(); }

}  // namespace

bool Available() { return true; }

bool Apply(const Tensor& x) {
  const auto type = x.scalar_type();
  return x.is_cuda() && x.dim() > 0 && x.size(-1) % 4 == 0 &&
         (type == torch::kFloat || type == torch::kBFloat16 || type == torch::kHalf);
}

void RmsNorm(const Tensor& x, const Tensor& weight, double eps, const Tensor& y,
             const Tensor& inverse) {
  CheckAligned(weight);
  const Launch launch(x);
  RmsNorm({TypeOf(x), TypeOf(y)}, RowsOf(x), x.data_ptr(), Floats(weight), static_cast<float>(eps),
          y.data_ptr(), inverse.data_ptr<float>(), launch.stream());
  launch.Check();
}

bool RmsNormAdd(const Tensor& x, const Tensor& weight, double eps, const Tensor& plus,
                const Tensor& y, const Tensor& inverse) {
  const bool narrow = x.scalar_type() == torch::kBFloat16 || x.scalar_type() == torch::kHalf;
  if (!narrow || plus.scalar_type() != x.scalar_type()) return false;
  const Launch launch(x);
  const bool done =
      ShortRmsNormAdd(TypeOf(x), RowsOf(x), x.data_ptr(), Floats(weight), static_cast<float>(eps),
                      plus.data_ptr(), y.data_ptr(), inverse.data_ptr<float>(), launch.stream());
  launch.Check();
  return done;
}

Tensor RmsNormBackward(const Tensor& x, const Tensor& weight, const Tensor& inverse,
                       const Tensor& dy, const Tensor& other, const Tensor& dx) {
  const bool wanted = weight.requires_grad();
  const Tensor partial =
      wanted ? torch::empty({NormBlocks(x.size(-1)), x.size(-1)}, inverse.options()) : Tensor();
  const Launch launch(x);
  RmsNormBackward({TypeOf(x), TypeOf(dy)}, RowsOf(x), x.data_ptr(), Floats(weight), Floats(inverse),
                  dy.data_ptr(), other.defined() ? other.data_ptr() : nullptr, dx.data_ptr(),
                  wanted ? partial.data_ptr<float>() : nullptr, launch.stream());
  launch.Check();
  return wanted ? partial.sum(0) : Tensor();
}

void SwiGlu(const Tensor& gate, const Tensor& up, const Tensor& y) {
  const Launch launch(gate);
  SwiGlu(TypeOf(gate), RowsOf(gate), {gate.data_ptr(), up.data_ptr(), RowStride(gate)},
         y.data_ptr(), launch.stream());
  launch.Check();
}

void SwiGluBackward(const Tensor& gate, const Tensor& up, const Tensor& dy, const Tensor& dgate) {
  const Launch launch(gate);
  SwiGluBackward(TypeOf(gate), RowsOf(gate), {gate.data_ptr(), up.data_ptr(), RowStride(gate)},
                 {dgate.data_ptr(), dy.data_ptr(), RowStride(dy)}, launch.stream());
  launch.Check();
}

void Rope(const Tensor& x, const Tensor& cosine, const Tensor& sine, float sign, const Tensor& y) {
  const RopeShape shape{.rows = x.size(0) * x.size(1),
                        .time = x.size(1),
                        .heads = x.size(2),
                        .half = x.size(3) / 2,
                        .from_stride = RowStride(x.flatten(2)),
                        .to_stride = RowStride(y.flatten(2))};
  const Launch launch(x);
  Rope(TypeOf(x), shape, x.data_ptr(), Floats(cosine), Floats(sine), sign, y.data_ptr(),
       launch.stream());
  launch.Check();
}

void Drop(const Tensor& x, const Tensor& of_row, const Tensor& positions, uint64_t site,
          uint32_t threshold, bool add, const Tensor& y) {
  const Tensor keys = of_row.contiguous();
  const Tensor places = positions.defined() ? positions.contiguous() : positions;
  const DropShape shape{.rows = x.size(0) * x.size(1),
                        .time = x.size(1),
                        .channels = x.size(2),
                        .rows_of_key = keys.dim() == 2 ? 1 : x.size(1),
                        .site = site,
                        .threshold = threshold};
  const Launch launch(x);
  Drop(TypeOf(x), shape, keys.const_data_ptr<int64_t>(),
       places.defined() ? places.const_data_ptr<int64_t>() : nullptr, x.data_ptr(), add,
       y.data_ptr(), launch.stream());
  launch.Check();
}

void CrossEntropy(const Tensor& logits, const Tensor& targets, const Tensor& weights,
                  const Tensor& losses, const Tensor& right) {
  const Launch launch(logits);
  CrossEntropy(TypeOf(logits), RowsOf(logits), logits.data_ptr(), targets.const_data_ptr<int64_t>(),
               weights.defined() ? weights.const_data_ptr<float>() : nullptr,
               losses.data_ptr<float>(), right.defined() ? right.data_ptr<bool>() : nullptr,
               launch.stream());
  launch.Check();
}

void AdamW(const AdamWStep& step, const Tensor& value, const Tensor& gradient, const Tensor& first,
           const Tensor& second, const Tensor& copy) {
  const bool narrow = copy.defined();
  const Launch launch(value);
  AdamW(narrow ? TypeOf(copy) : Type::kFloat, value.numel(), step, value.data_ptr<float>(),
        gradient.data_ptr<float>(), first.data_ptr<float>(), second.data_ptr<float>(),
        narrow ? copy.data_ptr() : nullptr, launch.stream());
  launch.Check();
}

void AdamW8(const AdamWStep& step, const Tensor& value, const Tensor& gradient,
            const Moments8& moments, const RandomPlace& random, const Tensor& copy) {
  const bool narrow = copy.defined();
  const Launch launch(value);
  AdamW8(narrow ? TypeOf(copy) : Type::kFloat, value.numel(), step, value.data_ptr<float>(),
         gradient.data_ptr<float>(), moments, random, narrow ? copy.data_ptr() : nullptr,
         launch.stream());
  launch.Check();
}

namespace {

// Nothing is recorded on the default stream. One stream, since LibTorch keeps working memory for
// each that products were ever launched on.
c10::cuda::CUDAStream RecordingStream(c10::DeviceIndex device) {
  static std::map<c10::DeviceIndex, c10::cuda::CUDAStream> streams;
  const auto it = streams.find(device);
  if (it != streams.end()) return it->second;
  return streams.emplace(device, c10::cuda::getStreamFromPool(false, device)).first->second;
}

class DeviceGraph final : public Graph {
 public:
  explicit DeviceGraph(const DeviceGraph* share_memory_with)
      : pool_(share_memory_with == nullptr ? at::cuda::graph_pool_handle()
                                           : share_memory_with->pool_) {}

  void Record(const std::function<void()>& work) {
    c10::cuda::device_synchronize();
    const c10::cuda::CUDAStreamGuard on(RecordingStream(c10::cuda::current_device()));
    // Other threads may go on asking the device for what a recording thread may not.
    graph_.capture_begin(pool_, cudaStreamCaptureModeThreadLocal);
    try {
      work();
    } catch (...) {
      EndFailed();
      throw;
    }
    graph_.capture_end();
  }
  void Launch() override { graph_.replay(); }

 private:
  // LibTorch (2.11) asks whether the recording went well before it tells its allocator that it has
  // ended, and so never does.
  void EndFailed() {
    try {
      graph_.capture_end();
      return;
    } catch (const std::exception&) {  // says again what is known
    }
    (void)cudaGetLastError();
    const c10::DeviceIndex device = c10::cuda::current_device();
    try {
      c10::cuda::CUDACachingAllocator::endAllocateToPool(device, pool_);
      c10::cuda::CUDACachingAllocator::releasePool(device, pool_);
    } catch (const std::exception&) {  // a LibTorch that has told it
    }
  }

  const c10::cuda::MempoolId_t pool_;
  at::cuda::CUDAGraph graph_;
};

}  // namespace

bool CanRecord() { return true; }

std::unique_ptr<Graph> Record(torch::Device device, const std::function<void()>& work,
                              const Graph* share_memory_with) {
  const c10::cuda::CUDAGuard guard(device);
  auto graph = std::make_unique<DeviceGraph>(static_cast<const DeviceGraph*>(share_memory_with));
  graph->Record(work);
  return graph;
}

void Synchronize() { c10::cuda::device_synchronize(); }

// Generation: the product of one row, and attention over what is kept.
namespace {

constexpr int64_t kMostHeadDim = 256, kHeadStep = 16;
constexpr double kLog2OfE = 1.4426950408889634;

// Eight numbers side by side in memory are read at once.
bool IsAligned(const Tensor& x) {
  const auto bytes = static_cast<uintptr_t>(8 * x.element_size());
  return x.is_contiguous() && reinterpret_cast<uintptr_t>(x.data_ptr()) % bytes == 0;
}

const void* OrNull(const Tensor& x) { return x.defined() ? x.data_ptr() : nullptr; }

OneRow ShapeOf(const OneRowInput& input, const Tensor& weight) {
  OneRow shape;
  if (input.norm.defined()) shape.input = OneRow::Input::kNormal;
  if (input.up.defined()) shape.input = OneRow::Input::kSwiGlu;
  shape.columns = weight.size(0);
  shape.inner = weight.size(1);
  shape.x = input.x.data_ptr();
  shape.up = OrNull(input.up);
  shape.norm = static_cast<const float*>(OrNull(input.norm));
  shape.eps = static_cast<float>(input.eps);
  return shape;
}

}  // namespace

Tensor OneRowProduct(const OneRowInput& input, const Tensor& weight, const Tensor& residual) {
  const Tensor& x = input.x;
  if (x.numel() != x.size(-1) || !Apply(x) || weight.scalar_type() != x.scalar_type()) return {};
  if (residual.defined() && residual.scalar_type() != x.scalar_type()) return {};
  for (const Tensor& one : {x, weight, input.up, input.norm}) {
    if (one.defined() && !IsAligned(one)) return {};
  }
  const OneRow shape = ShapeOf(input, weight);
  if (!TakesOneRow(TypeOf(x), shape)) return {};
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() = shape.columns;
  const Tensor y = torch::empty(sizes, x.options());
  const Tensor added = residual.defined() ? residual.contiguous() : residual;
  const Launch launch(x);
  OneRowProduct(TypeOf(x), shape, weight.data_ptr(), OrNull(added), y.data_ptr(), launch.stream());
  launch.Check();
  return y;
}

bool TakesKept(const Tensor& keys, int64_t heads) {
  const int64_t dim = keys.size(3);
  return Apply(keys) && keys.is_contiguous() && dim % kHeadStep == 0 && dim <= kMostHeadDim &&
         heads % keys.size(1) == 0;
}

KeptWork MakeKeptWork(const Tensor& keys, int64_t heads) {
  int64_t numbers = 0;
  for (int64_t rows = 1; rows <= keys.size(0); ++rows) {
    const int64_t splits = KeptAttentionSplits(rows, keys.size(1));
    numbers = std::max(numbers, rows * heads * splits * (keys.size(3) + 2));
  }
  return {torch::empty({numbers}, keys.options().dtype(torch::kFloat)),
          torch::zeros({keys.size(0) * heads}, keys.options().dtype(torch::kInt))};
}

Tensor KeptAttention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cosine,
                     const Tensor& sine, const KeptRows& kept, const KeptWork& work) {
  const int64_t dim = q.size(2);
  const auto dense = [dim](const Tensor& x) {  // heads side by side; rows may be wider
    return x.stride(2) == 1 && (x.size(1) == 1 || x.stride(1) == dim);
  };
  const auto stride = [](const Tensor& x) { return x.flatten(1).stride(0); };
  const bool same = dense(q) && dense(k) && dense(v) &&
                    (q.size(0) == 1 || (stride(q) == stride(k) && stride(q) == stride(v)));
  if (!same) {  // as parts of one row
    const Tensor all = torch::cat({q, k, v}, 1);
    return KeptAttention(all.narrow(1, 0, q.size(1)), all.narrow(1, q.size(1), k.size(1)),
                         all.narrow(1, q.size(1) + k.size(1), v.size(1)), cosine, sine, kept, work);
  }
  const Tensor out = torch::empty(q.sizes(), q.options());
  const KeptAttentionShape shape{
      .rows = static_cast<int>(q.size(0)),
      .heads = static_cast<int>(q.size(1)),
      .kv_heads = static_cast<int>(k.size(1)),
      .head_dim = static_cast<int>(dim),
      .stride = stride(q),
      .capacity = kept.keys.size(2),
      .window = kept.window,
      .splits = KeptAttentionSplits(q.size(0), k.size(1)),
      .scale = static_cast<float>(kLog2OfE / std::sqrt(static_cast<double>(dim)))};
  const bool turned = cosine.defined();
  const KeptAttentionPointers pointers{.q = q.data_ptr(),
                                       .k = k.data_ptr(),
                                       .v = v.data_ptr(),
                                       .cosine = turned ? cosine.const_data_ptr<float>() : nullptr,
                                       .sine = turned ? sine.const_data_ptr<float>() : nullptr,
                                       .keys = kept.keys.data_ptr(),
                                       .values = kept.values.data_ptr(),
                                       .positions = kept.positions.const_data_ptr<int64_t>(),
                                       .out = out.data_ptr(),
                                       .parts = work.parts.data_ptr<float>(),
                                       .finished = work.finished.data_ptr<int>()};
  const Launch launch(q);
  KeptAttention(TypeOf(q), shape, pointers, launch.stream());
  launch.Check();
  return out;
}

Tensor DrawIds(const Tensor& logits_in, const Tensor& by) {
  const Tensor logits = logits_in.contiguous();
  const RowShape shape = RowsOf(logits);
  const Tensor work = torch::empty({DrawBytes(shape)}, logits.options().dtype(torch::kByte));
  const Tensor ids = torch::empty({shape.rows}, logits.options().dtype(torch::kLong));
  const Launch launch(logits);
  Draw(TypeOf(logits), shape, logits.data_ptr(), by.const_data_ptr<double>(), work.data_ptr(),
       ids.data_ptr<int64_t>(), launch.stream());
  launch.Check();
  return ids;
}

}  // namespace espalier::cuda
