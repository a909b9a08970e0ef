#include "worker/tensor/torch_compat.h"

#include <torch/version.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace espalier {
namespace {

class PostHook final : public torch::autograd::FunctionPostHook {
 public:
  explicit PostHook(std::function<void()> hook) : hook_(std::move(hook)) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list&) override {
    hook_();
    return outputs;
  }

 private:
  std::function<void()> hook_;
};

// The out-of-memory texts of the CPU allocator, CUDA and MPS; only CUDA has a type of its own, and
// its name has changed.
bool IsOutOfMemory(absl::string_view text) {
  for (absl::string_view mark :
       {"out of memory", "can't allocate memory", "not enough memory", "ALLOC_FAILED",
        "Invalid buffer size", "bad_alloc", "Insufficient Memory"}) {
    if (absl::StrContains(text, mark)) return true;
  }
  return false;
}

}  // namespace

absl::Status StatusFromTorch(const std::exception& error, absl::string_view what) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  const std::string text =
      torch_error != nullptr ? torch_error->what_without_backtrace() : error.what();
  const std::string first_line = *absl::StrSplit(text, '\n').begin() == ""
                                     ? text
                                     : std::string(*absl::StrSplit(text, '\n').begin());
  const std::string message = absl::StrCat(what, ": ", first_line);
  return IsOutOfMemory(text) ? absl::ResourceExhaustedError(message) : absl::InternalError(message);
}

void OnGradient(const torch::Tensor& tensor, std::function<void()> hook) {
  if (!tensor.requires_grad()) return;
  tensor.register_hook([hook = std::move(hook)](const torch::Tensor&) { hook(); });
}

void AfterBackward(const torch::Tensor& tensor, std::function<void()> hook) {
  if (const auto& node = tensor.grad_fn()) {
    node->add_post_hook(std::make_unique<PostHook>(std::move(hook)));
  }
}

std::optional<torch::Tensor> LibraryAttention(const torch::Tensor& q, const torch::Tensor& k,
                                              const torch::Tensor& v, bool causal) {
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 6)
  // cuDNN's kernels are the fastest on Hopper; LibTorch's own order begins with flash attention.
  static const bool ordered = [] {
    at::globalContext().setSDPPriorityOrder(
        {static_cast<int64_t>(at::SDPBackend::cudnn_attention),
         static_cast<int64_t>(at::SDPBackend::flash_attention),
         static_cast<int64_t>(at::SDPBackend::efficient_attention),
         static_cast<int64_t>(at::SDPBackend::math)});
    return true;
  }();
  (void)ordered;
  if (q.is_cuda() && (q.scalar_type() == torch::kBFloat16 || q.scalar_type() == torch::kHalf)) {
    return at::scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2),
                                            /*attn_mask=*/{}, /*dropout_p=*/0.0, causal,
                                            /*scale=*/{}, /*enable_gqa=*/q.size(2) != k.size(2))
        .transpose(1, 2);
  }
#else
  (void)k;
  (void)v;
  (void)causal;
#endif
  (void)q;
  return {};
}

#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 8)
torch::Tensor PlusProduct(const torch::Tensor& c, const torch::Tensor& a, const torch::Tensor& b) {
  if (c.scalar_type() == a.scalar_type()) return torch::addmm(c, a, b);
  return at::addmm(c, a, b, c.scalar_type());
}

void AddProduct(const torch::Tensor& c, const torch::Tensor& a, const torch::Tensor& b) {
  torch::Tensor out = c;
  if (c.scalar_type() == a.scalar_type()) {
    out.addmm_(a, b);
  } else {
    at::addmm_out(out, c, a, b, c.scalar_type());
  }
}
#else
torch::Tensor PlusProduct(const torch::Tensor& c, const torch::Tensor& a, const torch::Tensor& b) {
  return c.scalar_type() == a.scalar_type() ? torch::addmm(c, a, b) : c + a.mm(b);
}

void AddProduct(const torch::Tensor& c, const torch::Tensor& a, const torch::Tensor& b) {
  torch::Tensor out = c;
  c.scalar_type() == a.scalar_type() ? out.addmm_(a, b) : out.add_(a.mm(b));
}
#endif

bool HasEvents(torch::Device device) {
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 7)
  constexpr bool kOfMps = true;
#else
  constexpr bool kOfMps = false;
#endif
  if (device.is_mps()) return kOfMps;
  return device.is_cuda() || device.type() == c10::DeviceType::PrivateUse1;
}

void WaitForEvent(const c10::Event& event) {
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 5)
  event.synchronize();
#else
  while (!event.query()) std::this_thread::sleep_for(std::chrono::microseconds(50));
#endif
}

void AllowTf32(bool allow) {
  at::globalContext().setAllowTF32CuBLAS(allow);
  at::globalContext().setAllowTF32CuDNN(allow);
}

bool HasCuda() { return torch::cuda::is_available(); }

bool HasMps() { return at::hasMPS(); }

absl::string_view TorchVersion() { return TORCH_VERSION; }

}  // namespace espalier
