// WrongOperator: an operator of LibTorch that comes to the wrong thing, for tests of what should
// notice. Used by tests/worker/model and tests/worker/mac. One at a time, made while none is
// called.
#pragma once

#include <ATen/record_function.h>

#include <cstring>
#include <memory>

#include "worker/tensor/torch.h"

namespace espalier {

// While it lives, what the operator ("aten::mm") gives is an eighth too large where it is of
// `type`, in fp64 by an eighth besides; whole numbers are by one.
class WrongOperator {
 public:
  WrongOperator(const char* name, torch::ScalarType type) {
    name_ = name;
    type_ = type;
    calls_ = 0;
    handle_ = at::addGlobalCallback(
        at::RecordFunctionCallback(
            [](const at::RecordFunction&) { return std::unique_ptr<at::ObserverContext>(); }, Spoil)
            .needsOutputs(true)
            .scopes({at::RecordScope::FUNCTION}));
  }
  ~WrongOperator() { at::removeCallback(handle_); }
  WrongOperator(const WrongOperator&) = delete;
  WrongOperator& operator=(const WrongOperator&) = delete;

  static int calls() { return calls_; }

 private:
  static void Spoil(const at::RecordFunction& function, at::ObserverContext*) {
    static thread_local bool spoiling = false;  // by operators of its own
    if (spoiling || std::strcmp(function.name(), name_) != 0) return;
    if (function.outputs().empty()) return;
    const c10::IValue& out = function.outputs()[0];
    if (!out.isTensor() || !out.toTensor().defined()) return;
    const torch::NoGradGuard no_grad;
    const torch::Tensor result = out.toTensor().variable_data();
    spoiling = true;
    if (result.scalar_type() == type_) {
      ++calls_;
      result.mul_(1.125);
      if (type_ == torch::kDouble) result.add_(0.125);
    } else if (result.scalar_type() == torch::kLong || result.scalar_type() == torch::kInt) {
      ++calls_;
      result.add_(1);
    }
    spoiling = false;
  }

  inline static const char* name_ = nullptr;
  inline static torch::ScalarType type_ = torch::kDouble;
  inline static int calls_ = 0;
  at::CallbackHandle handle_;
};

}  // namespace espalier
