// Recompute: a part of a model whose intermediate values are not kept for the backward pass but
// made again there (Chen et al. 2016), at the price of a second forward pass. Used by decoder.cc
// and recursive_model.cc. Compute thread (forward), autograd's threads (backward).
#pragma once

#include <functional>
#include <vector>

#include "worker/tensor/torch.h"

namespace espalier {

// body(inputs), of which only the inputs are kept. `leaves`: the weights that `body` uses. `body`
// gives the same result each time it is called, and whatever it refers to outlives the backward
// pass, in which it is called again, with gradients enabled, and run backward at once: its weights'
// gradients are final when those of the inputs are known, as without Recompute, and have the same
// bits. Any of the inputs and leaves may need no gradient.
torch::Tensor Recompute(std::function<torch::Tensor(const std::vector<torch::Tensor>&)> body,
                        const std::vector<torch::Tensor>& inputs,
                        const std::vector<torch::Tensor>& leaves);

}  // namespace espalier
