#include "worker/memory/memory_meter.h"

#include <algorithm>
#include <cstdlib>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/memory/allocator.h"
#include "worker/tensor/device.h"
#include "worker/tensor/torch_compat.h"

namespace espalier {
namespace {

constexpr absl::Duration kPressureInterval = absl::Seconds(1);
// Swap that grew by more between two looks is memory that did not fit.
constexpr int64_t kSwapGrowthBytes = int64_t{32} << 20;
// Less than this part of the limit left is little.
constexpr int64_t kLittle = 33;
// Part of a Mac's memory that it recommends at most for its GPU.
constexpr double kMostRecommended = 0.75;
// Parts of the machine's memory that are a worker's, and in how many it is: the rest is the
// system's, which would swap to have it.
constexpr double kOwnParts = 15, kParts = 16;
// Of what is recommended, so that a job which does not fit says so itself: 0 would mean no limit.
constexpr double kLeastPart = 0.01;

void Lower(MemoryLimit& limit, int64_t bytes, absl::string_view source) {
  if (bytes >= limit.bytes) return;
  limit = {bytes, std::string(source)};
}

}  // namespace

MemoryLimit TightestLimit(const MachineMemory& machine, int64_t process_bytes, int64_t wanted,
                          int sharers) {
  MemoryLimit limit{machine.physical_bytes / sharers, "the machine's memory"};
  Lower(limit, machine.limit_bytes / sharers, "the control group's limit");
  Lower(limit, process_bytes + machine.available_bytes / sharers, "what was free at the start");
  if (wanted > 0) Lower(limit, wanted, "memory_limit_bytes");
  return limit;
}

MpsWatermarks MpsWatermarksFor(int64_t recommended_bytes, const MpsShare& share) {
  const auto physical = static_cast<double>(share.physical_bytes);
  const double most =
      recommended_bytes > 0 ? static_cast<double>(recommended_bytes) : kMostRecommended * physical;
  if (most <= 0) return {};
  const int sharers = std::max(1, share.sharers);
  double own = physical / sharers * kOwnParts / kParts;
  if (share.wanted_bytes > 0) own = std::min(own, static_cast<double>(share.wanted_bytes));
  const double left = own - static_cast<double>(share.beside_bytes);
  const double high = std::clamp(left / most, kLeastPart, 1.0 / sharers);
  return {.high = high, .low = 0.9 * high};
}

bool SetMpsWatermarks(const MpsWatermarks& watermarks) {
  const char* high_name = "PYTORCH_MPS_HIGH_WATERMARK_RATIO";
  const char* low_name = "PYTORCH_MPS_LOW_WATERMARK_RATIO";
  const char *high = std::getenv(high_name), *low = std::getenv(low_name);
  double given = 0;
  if (high == nullptr && low == nullptr) {
    setenv(high_name, absl::StrCat(watermarks.high).c_str(), 1);
    setenv(low_name, absl::StrCat(watermarks.low).c_str(), 1);
    return true;
  }
  // LibTorch's own other half is too large for a low, or too small for a high one.
  if (low == nullptr && absl::SimpleAtod(high, &given) && given > 0) {
    setenv(low_name, absl::StrCat(0.9 * given).c_str(), 1);
  } else if (high == nullptr && absl::SimpleAtod(low, &given)) {
    setenv(high_name, absl::StrCat(std::max(watermarks.high, given)).c_str(), 1);
  }
  return false;
}

void LimitMpsMemory(const MpsShare& share, const MpsAllocator& allocator) {
  if (!SetMpsWatermarks(MpsWatermarksFor(0, share))) return;
  const int64_t recommended = allocator.recommended();
  if (recommended > 0) allocator.limit(MpsWatermarksFor(recommended, share).high);
}

absl::Status LimitGpuMemory(torch::Device device, const MpsShare& share) {
  if (!device.is_mps()) return absl::OkStatus();
  return CatchTorch("limiting the memory of the GPU", [&] {
    LimitMpsMemory(share, {.recommended = [device] { return RecommendedDeviceMemory(device); },
                           .limit = [device](double part) { LimitDeviceMemory(device, part); }});
  });
}

absl::Status CheckOneWorkerEach(int workers, int devices) {
  if (workers <= devices) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      workers, " workers of this machine share ", devices,
      " CUDA devices, so none can tell how much memory is left for its micro-batches; start one "
      "worker a device, or give batch.micro_batch"));
}

absl::StatusOr<MemoryLimit> MemoryMeter::Limit(int64_t wanted, int sharers) const {
  if (const std::optional<DeviceMemory> memory = ReadDeviceMemory(device_)) {
    RETURN_IF_ERROR(CheckOneWorkerEach(sharers, static_cast<int>(torch::cuda::device_count())));
    MemoryLimit limit{memory->total_bytes, absl::StrCat("the memory of ", device_.str())};
    if (wanted > 0) Lower(limit, wanted, "memory_limit_bytes");
    return limit;
  }
  if (device_.is_cuda()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "LibTorch ", TorchVersion(), " does not say how much memory of ", device_.str(),
        " it uses, so the size of a micro-batch cannot be found by measuring; "
        "give batch.micro_batch, or use LibTorch 2.9 or newer"));
  }
  ASSIGN_OR_RETURN(const MachineMemory machine, ReadMachineMemory());
  ASSIGN_OR_RETURN(const Reading reading, Read());
  return TightestLimit(machine, reading.now, wanted, sharers);
}

absl::StatusOr<MemoryMeter::Reading> MemoryMeter::Read() const {
  if (const std::optional<DeviceMemory> memory = ReadDeviceMemory(device_)) {
    return Reading{.now = memory->now_bytes, .peak = memory->peak_bytes};
  }
  ASSIGN_OR_RETURN(const ProcessMemory memory, ReadProcessMemory());
  return Reading{.now = memory.now_bytes - memory.file_bytes,
                 .peak = memory.recent_peak_bytes - memory.file_bytes};
}

void MemoryMeter::Restart() {
  RestartDevicePeak(device_);
  RestartRecentPeak();
}

bool MemoryMeter::Pressure() {
  const absl::Duration now = clock_.Monotonic();
  if (now - asked_ < kPressureInterval) return pressure_;
  asked_ = now;
  if (device_.is_cuda()) return false;  // the host's; smaller micro-batches would not help it
  pressure_ = ReadMachineCondition().memory >= Pressure::kWarning;
  const absl::StatusOr<MachineMemory> machine = ReadMachineMemory();
  if (!machine.ok()) return pressure_;
  const int64_t grown = swap_used_ < 0 ? 0 : machine->swap_used_bytes - swap_used_;
  swap_used_ = machine->swap_used_bytes;
  pressure_ = pressure_ || grown > kSwapGrowthBytes ||
              machine->available_bytes < machine->limit_bytes / kLittle;
  return pressure_;
}

void MemoryMeter::Trim() {
  FreeDeviceCache(device_);
  ReleaseFreeMemory();
}

}  // namespace espalier
