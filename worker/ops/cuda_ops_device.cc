#include "worker/ops/cuda_ops_device.h"

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>

#include <map>

#include "worker/ops/cuda_ops.h"

namespace espalier::cuda {
namespace {

using torch::Tensor;

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

void Drop(const Tensor& x, const Tensor& of_row, uint64_t site, uint32_t threshold, bool add,
          const Tensor& y) {
  const DropShape shape{.rows = x.size(0) * x.size(1),
                        .time = x.size(1),
                        .channels = x.size(2),
                        .site = site,
                        .threshold = threshold};
  const Launch launch(x);
  Drop(TypeOf(x), shape, of_row.const_data_ptr<int64_t>(), x.data_ptr(), add, y.data_ptr(),
       launch.stream());
  launch.Check();
}

void CrossEntropy(const Tensor& logits, const Tensor& targets, const Tensor& weights,
                  const Tensor& losses) {
  const Launch launch(logits);
  CrossEntropy(TypeOf(logits), RowsOf(logits), logits.data_ptr(), targets.const_data_ptr<int64_t>(),
               weights.defined() ? weights.const_data_ptr<float>() : nullptr,
               losses.data_ptr<float>(), launch.stream());
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

}  // namespace espalier::cuda
