#include "worker/ops/recompute.h"

#include <utility>

namespace espalier {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

using Body = std::function<Tensor(const Tensor&)>;

// Lets the context of an autograd function hold a body.
struct BodyHolder : torch::CustomClassHolder {
  explicit BodyHolder(Body held) : body(std::move(held)) {}
  Body body;
};

struct RecomputeFunction : torch::autograd::Function<RecomputeFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, at::TensorList leaves,
                        const Body& body) {
    variable_list saved = {x};
    saved.insert(saved.end(), leaves.begin(), leaves.end());
    ctx->save_for_backward(std::move(saved));
    ctx->saved_data["body"] = c10::IValue::make_capsule(c10::make_intrusive<BodyHolder>(body));
    return body(x);
  }

  static variable_list backward(AutogradContext* ctx, variable_list upstream) {
    variable_list inputs = ctx->get_saved_variables();
    inputs[0] = inputs[0].detach().set_requires_grad(ctx->needs_input_grad(0));
    const auto holder = ctx->saved_data["body"].toCapsule();
    const torch::AutoGradMode enabled(true);
    const Tensor y = static_cast<const BodyHolder&>(*holder).body(inputs[0]);
    variable_list wanted;
    for (const Tensor& input : inputs) {
      if (input.requires_grad()) wanted.push_back(input);
    }
    // Operations add to the flat gradient themselves and leave that of the leaf undefined; what
    // they do not add goes on through autograd.
    const variable_list found =
        torch::autograd::grad({y}, wanted, {upstream[0]}, /*retain_graph=*/{},
                              /*create_graph=*/false, /*allow_unused=*/true);
    variable_list gradients(inputs.size() + 1);
    for (size_t i = 0, next = 0; i < inputs.size(); ++i) {
      if (inputs[i].requires_grad()) gradients[i] = found[next++];
    }
    return gradients;
  }
};

}  // namespace

Tensor Recompute(Body body, const Tensor& x, const std::vector<Tensor>& leaves) {
  return RecomputeFunction::apply(x, at::TensorList(leaves), body);
}

}  // namespace espalier
