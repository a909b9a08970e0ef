// What the self-test tries of a device one by one, so that what is wrong can be named: operations
// of training and generating at the sizes and places in memory where devices are known to fail.
// Used by worker/model/self_check.cc. Compute thread.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "worker/formats/decoder_config.h"
#include "worker/tensor/torch.h"

namespace espalier {

struct TrialPlace {
  torch::Device device;
  torch::ScalarType type;  // of inputs
  int64_t positions;       // of a sequence
};

struct OperatorTrial {
  const char* name;  // for people: what it comes to
  // What the operation gives, and its gradients; the same inputs each time. Failures of LibTorch
  // are exceptions.
  std::function<std::vector<torch::Tensor>(const TrialPlace& place)> run;
};

// Of products with a common dimension of 33,000, as rows or as a vocabulary (wrong on M1 and M2,
// pytorch#177116, #195163, unless they are cut); attention of later blocks of rows, with grouped
// heads and a window; norms with neighbouring products, whose weights begin within their memory;
// gated products; looked-up rows; products with adapters; keys and values that are kept, and
// products of one row, as tokens are generated with; copies to the device and back, also while it
// computes. Of GPT-2 its own norms, products and positions; of recursive models their halting.
std::vector<OperatorTrial> OperatorTrials(Architecture architecture);

}  // namespace espalier
