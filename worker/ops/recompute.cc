#include "worker/ops/recompute.h"

#include <utility>

namespace espalier {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

using Body = std::function<Tensor(const std::vector<Tensor>&)>;

// Lets the context of an autograd function hold a body.
struct BodyHolder : torch::CustomClassHolder {
  explicit BodyHolder(Body held) : body(std::move(held)) {}
  Body body;
};

struct RecomputeFunction : torch::autograd::Function<RecomputeFunction> {
  // `all`: the inputs of the body, `count` of them, and behind them the leaves.
  static Tensor forward(AutogradContext* ctx, at::TensorList all, int64_t count, const Body& body) {
    ctx->save_for_backward(all.vec());
    ctx->saved_data["count"] = count;
    ctx->saved_data["body"] = c10::IValue::make_capsule(c10::make_intrusive<BodyHolder>(body));
    return body(all.slice(0, static_cast<size_t>(count)).vec());
  }

  static variable_list backward(AutogradContext* ctx, variable_list upstream) {
    variable_list all = ctx->get_saved_variables();
    const auto count = static_cast<size_t>(ctx->saved_data["count"].toInt());
    for (size_t i = 0; i < count; ++i) {
      all[i] = all[i].detach().set_requires_grad(ctx->needs_input_grad(i));
    }
    const auto holder = ctx->saved_data["body"].toCapsule();
    const torch::AutoGradMode enabled(true);
    const Tensor y =
        static_cast<const BodyHolder&>(*holder).body(at::TensorList(all).slice(0, count).vec());
    variable_list wanted;
    for (const Tensor& one : all) {
      if (one.requires_grad()) wanted.push_back(one);
    }
    // Operations add to the flat gradient themselves and leave that of the leaf undefined; what
    // they do not add goes on through autograd.
    const variable_list found =
        torch::autograd::grad({y}, wanted, {upstream[0]}, /*retain_graph=*/{},
                              /*create_graph=*/false, /*allow_unused=*/true);
    variable_list gradients(all.size() + 2);
    for (size_t i = 0, next = 0; i < all.size(); ++i) {
      if (all[i].requires_grad()) gradients[i] = found[next++];
    }
    return gradients;
  }
};

}  // namespace

Tensor Recompute(Body body, const std::vector<Tensor>& inputs, const std::vector<Tensor>& leaves) {
  variable_list all = inputs;
  all.insert(all.end(), leaves.begin(), leaves.end());
  return RecomputeFunction::apply(at::TensorList(all), static_cast<int64_t>(inputs.size()), body);
}

}  // namespace espalier
