// The devices of this machine, each in every precision that it has: the CPU alone where there is no
// accelerator. Used by tests/worker/model. Any thread.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "worker/tensor/torch_compat.h"

namespace espalier {

struct DeviceCase {
  std::string device;
  torch::ScalarType type;
  double tolerance;  // of what is compared, relative to its norm
};

inline std::vector<DeviceCase> DeviceCases() {
  std::vector<DeviceCase> cases = {{"cpu", torch::kFloat, 1e-5}, {"cpu", torch::kBFloat16, 0.1}};
  if (HasCuda()) {
    cases.push_back({"cuda", torch::kFloat, 1e-4});
    cases.push_back({"cuda", torch::kBFloat16, 0.1});
    cases.push_back({"cuda", torch::kHalf, 0.02});
  }
  if (HasMps()) cases.push_back({"mps", torch::kFloat, 1e-3});
  return cases;
}

inline std::string NameOfCase(const testing::TestParamInfo<DeviceCase>& info) {
  return info.param.device + torch::toString(info.param.type);
}

}  // namespace espalier
