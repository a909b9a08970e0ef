#include "worker/model/torch_compat.h"

#include <torch/version.h>

#include <memory>
#include <string>

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
  for (absl::string_view mark : {"out of memory", "can't allocate memory", "not enough memory",
                                 "Invalid buffer size", "bad_alloc"}) {
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

bool HasCuda() { return torch::cuda::is_available(); }

bool HasMps() { return at::hasMPS(); }

absl::string_view TorchVersion() { return TORCH_VERSION; }

}  // namespace espalier
