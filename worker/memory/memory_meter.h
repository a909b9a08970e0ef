// MemoryMeter: measures for the memory governor. Memory of a CUDA device is what LibTorch's
// allocator holds there; elsewhere it is what the process holds, without the pages of mapped files,
// which the system drops before it runs short. Used by worker/train/pass_memory.h,
// worker/job_inputs.cc, worker/open_model.cc and worker/self_test_verb.cc. Compute thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/platform/platform.h"
#include "worker/tensor/torch.h"

namespace espalier {

struct MemoryLimit {
  int64_t bytes = 0;
  std::string source;  // for people: "the control group's limit"
};

// The tightest of `wanted` (0: none; the job's or the node's), of the control group's limit and of
// what is free beside what the process has; the latter two divided by the `sharers` workers of
// this machine that start together.
MemoryLimit TightestLimit(const MachineMemory& machine, int64_t process_bytes, int64_t wanted,
                          int sharers);

// How much memory LibTorch may take on MPS before it throws, as parts of what the device
// recommends; LibTorch wants low <= high. Its own limit, 1.7 times that, is more than the machine
// has, so that a pass that does not fit makes the machine swap instead of running out, which the
// memory governor would learn from.
struct MpsWatermarks {
  double high = 1;   // an allocation that would pass it throws
  double low = 0.9;  // above it, memory that is only kept is given back
};

// What the workers of a machine have to share.
struct MpsShare {
  int64_t physical_bytes = 0;  // of the machine
  int64_t wanted_bytes = 0;    // of the job or the node, for all that a worker takes; 0: no limit
  int64_t beside_bytes = 0;    // what a worker keeps that LibTorch's allocator does not count
  int sharers = 1;             // workers of this machine
};

// With what lies beside, they leave a sixteenth of the machine's memory to the system.
// `recommended_bytes`: what the device recommends (recommendedMaxWorkingSetSize); 0: not known, and
// three quarters of the machine's memory are assumed, the most that macOS recommends by itself.
MpsWatermarks MpsWatermarksFor(int64_t recommended_bytes, const MpsShare& share);

// Puts them into the environment (PYTORCH_MPS_HIGH_WATERMARK_RATIO and _LOW_), where LibTorch reads
// them once, with the first thing that is asked of its allocator. What a person has set there
// stays, with a half that goes with it where that is missing (LibTorch throws where low is above
// high), and false is returned.
bool SetMpsWatermarks(const MpsWatermarks& watermarks);

// What LibTorch's allocator is asked; both make it, so that it reads the environment.
struct MpsAllocator {
  std::function<int64_t()> recommended;    // 0: it does not say
  std::function<void(double part)> limit;  // to a part of that
};
// Limits memory on MPS before anything is allocated there: in the environment by what can be known
// without the allocator, then by what that recommends.
void LimitMpsMemory(const MpsShare& share, const MpsAllocator& allocator);
// The same with LibTorch's; nothing on other devices.
absl::Status LimitGpuMemory(torch::Device device, const MpsShare& share);

// FAILED_PRECONDITION when workers of this machine share a CUDA device: what one measures there,
// the other moves meanwhile.
absl::Status CheckOneWorkerEach(int workers, int devices);

class MemoryMeter {
 public:
  MemoryMeter(torch::Device device, Clock& clock) : device_(device), clock_(clock) {}

  // What this worker may use at most. FAILED_PRECONDITION when the memory cannot be measured here,
  // or is a CUDA device's that several of the `sharers` have to use.
  absl::StatusOr<MemoryLimit> Limit(int64_t wanted, int sharers) const;

  struct Reading {
    int64_t now = 0;
    int64_t peak = 0;  // since Restart
  };
  absl::StatusOr<Reading> Read() const;
  void Restart();

  // Whether the system is short of memory: it says so, swaps more than before, or has little left.
  // Asks at most once a second.
  bool Pressure();

  // Gives free memory that allocators keep back to the system.
  void Trim();

 private:
  const torch::Device device_;
  Clock& clock_;
  absl::Duration asked_ = -absl::InfiniteDuration();
  bool pressure_ = false;
  int64_t swap_used_ = -1;  // negative: not read yet
};

}  // namespace espalier
