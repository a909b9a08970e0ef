// MacQueue: copies that the device of mac_device.h was asked for and nobody waits for. Like a queue
// of Metal it does them later, one by one, each time it is asked how far it is; what a copy to the
// host holds is what was there when it was asked for. Used by tests/worker/mac/mac_device.cc. Any
// thread.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "worker/tensor/torch.h"

namespace espalier {

class MacQueue {
 public:
  // `from` is as it will be copied; `to` is memory of the host.
  void CopyToHost(torch::Tensor from, const torch::Tensor& to);
  // `to` is the device's memory as the processor sees it.
  void CopyToDevice(const torch::Tensor& from, const torch::Tensor& to);

  // All that was asked for until now.
  int64_t Mark();
  // Does the next copy where this is not done, and says whether it is.
  bool Reached(int64_t mark);
  void DoAll();
  // What was sent to the device, which the next operator may read. Returns what was done wrong.
  std::vector<std::string> DoUploads();
  void Clear();

 private:
  struct Copy {
    torch::Tensor from, to;
    bool up = false;
    bool done = false;
  };
  void Do(Copy& copy);

  std::mutex mutex_;
  std::vector<Copy> copies_;  // all until Clear; these and what follows under the mutex
  size_t reached_ = 0;
};

}  // namespace espalier
