// SlotStates: what each slot of the global batch keeps from one step to the next, for a task whose
// samples take several steps: a record, and numbers. It belongs to the slot and to no rank: after a
// step every rank has those of all slots, so that any plan, any ranks and any world go on with
// them, and they are a part of what is trained, in checkpoints and in the warm state.
//
// There are two halves. Step s reads half s % 2 and writes the other one, which is what step s + 1
// begins with when step s is committed, and what is written anew when it is not.
//
// Used by replica.h, worker/task and worker/train. Compute thread; another reader of the half of a
// step is done before the step after it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "worker/collective/collective.h"
#include "worker/data/order.h"
#include "worker/tensor/torch.h"

namespace espalier {

class SlotStates {
 public:
  struct Size {
    int64_t slots = 0;         // 0: nothing is kept
    int64_t record_bytes = 0;  // of a slot, a multiple of 8
    int64_t numbers = 0;       // fp32, of a slot
    int64_t bytes() const {
      return 2 * slots * (record_bytes + numbers * static_cast<int64_t>(sizeof(float)));
    }
  };

  // `device`: of the model that makes them. What CUDA is to read and write lies in memory of the
  // host that it can reach by itself.
  explicit SlotStates(torch::Device device = torch::kCPU) : pinned_(device.is_cuda()) {}

  // All zero. RESOURCE_EXHAUSTED names the bytes.
  absl::Status Keep(const Size& size);
  bool kept() const { return size_.slots > 0; }
  const Size& size() const { return size_; }
  // Records of 0, which tasks take for a slot that has no sample yet.
  void Reset();

  // With which `step` begins, by slot. Record is plain.
  template <typename Record>
  absl::Span<const Record> Records(Step step) const {
    return RecordsOf<Record>(step.value() % 2);
  }
  torch::Tensor Numbers(Step step) const { return numbers_[step.value() % 2]; }  // [slots, n]
  // With which the step after it begins.
  template <typename Record>
  absl::Span<Record> NextRecords(Step step) {
    return RecordsOf<Record>((step.value() + 1) % 2);
  }
  torch::Tensor NextNumbers(Step step) { return numbers_[(step.value() + 1) % 2]; }

  // Every rank has written what follows `step` of its slots, `mine`, which follow each other in the
  // order of ranks; afterwards each has it of all slots. Errors are the collective's.
  absl::Status Share(Collective& collective, SlotRange mine, Step step);

  // All memory, on the host.
  std::vector<torch::Tensor> Buffers() const;
  // Of what `step` begins with: records [slots, bytes] as bytes, and numbers.
  std::vector<torch::Tensor> PartsOf(Step step) const;

 private:
  template <typename Record>
  absl::Span<Record> RecordsOf(int64_t half) const {
    static_assert(std::is_trivially_copyable_v<Record> && alignof(Record) <= sizeof(int64_t));
    return {static_cast<Record*>(records_[half].data_ptr()), static_cast<size_t>(size_.slots)};
  }

  bool pinned_;
  Size size_;
  torch::Tensor records_[2];  // [slots, record_bytes] bytes
  torch::Tensor numbers_[2];  // [slots, numbers] fp32
};

}  // namespace espalier
