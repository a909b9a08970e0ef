// What operators come to in shapes, for the pretended Mac: how a call looks to MPSGraph, and the
// results of what LibTorch 1.13 wants memory for. Used by mac_device.cc. Any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "worker/tensor/torch.h"

namespace espalier::mac_shapes {

// The operator with the shapes and types of its tensors.
std::string Signature(const std::string& name, const std::vector<c10::IValue>& arguments);

// The shape of a result that LibTorch 1.13 comes to only with memory; none: it does without.
std::optional<std::vector<int64_t>> Result(const std::string& name,
                                           const std::vector<c10::IValue>& arguments);
// The results of a norm or of its gradients, without memory; empty: it is none.
std::vector<torch::Tensor> Norm(const std::string& name, const std::vector<c10::IValue>& arguments);

}  // namespace espalier::mac_shapes
