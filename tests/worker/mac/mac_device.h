// MacDevice: an accelerator that a Mac has and this machine has not, as far as LibTorch's dispatch
// goes. It stands behind LibTorch's key for devices of others (PrivateUse1). Operators that have a
// kernel for MPS (tests/data/mac/mps_kernels.txt) run on the processor; others fail with an error,
// as there; what is composed of others is taken apart, as there. Every call is held against the
// rules of mac_rules.h. Used by tests/worker/mac/conformance_test.cc and
// shapes_test.cc. One at a time; operators are called by the compute thread and by autograd's.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "worker/tensor/torch.h"

namespace espalier {

class MacDevice {
 public:
  enum class Mode {
    kComputes,
    // Tensors have no memory and operators no results: for shapes that do not fit here. What is
    // read of a tensor is one.
    kShapesOnly,
  };
  explicit MacDevice(Mode mode = Mode::kComputes);
  ~MacDevice();
  MacDevice(const MacDevice&) = delete;
  MacDevice& operator=(const MacDevice&) = delete;

  static torch::Device device() { return {torch::kPrivateUse1, 0}; }

  // What was done since Restart.
  struct Tally {
    // Launches: operators that compute, by name; neither views nor allocations.
    std::map<std::string, int64_t> launches;
    // The same with the shapes and types of what they take: LibTorch compiles most for each of
    // them and keeps what it compiled (pytorch#132596, #181485).
    std::set<std::string> graphs;
    int64_t bytes_to_device = 0;
    int64_t bytes_to_host = 0;
    int64_t reads = 0;     // of single numbers, each of which waits for all that was launched
    int64_t waits = 0;     // copies to the host that wait for all that was launched
    int64_t waits_up = 0;  // the same, to the device
    // What is against a rule, each text once.
    std::vector<std::string> violations;

    int64_t all_launches() const;
  };
  Tally tally() const;
  void Restart();
  // So many launches from now on have no effect on what they write to, as those of a command buffer
  // that the GPU aborts; nothing says so.
  void Lose(int64_t launches);
};

}  // namespace espalier
