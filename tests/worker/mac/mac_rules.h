// What a Mac does not take, or takes and comes to something else, of calls of LibTorch's operators.
// Used by tests/worker/mac/mac_device.cc. Any thread.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <string>
#include <vector>

#include "worker/tensor/torch.h"

namespace espalier {

// Operators that have a kernel of their own for MPS, as "name.overload":
// tests/data/mac/mps_kernels.txt.
const std::vector<std::string>& MpsKernels();

// A product of matrices or vectors; in place too.
bool IsProduct(std::string name);

// One that makes a tensor, or a view of one, without computing values.
bool Allocates(const std::string& name);

// The rules that a call is against, each with what it was called with; see kRules in mac_rules.cc.
std::vector<std::string> AgainstRules(const std::string& name, const c10::FunctionSchema& schema,
                                      const std::vector<c10::IValue>& arguments);
// The same of a copy between host and device; see kCopyRules there.
std::vector<std::string> AgainstRulesOfCopies(const torch::Tensor& from, const torch::Tensor& to,
                                              bool non_blocking);

}  // namespace espalier
