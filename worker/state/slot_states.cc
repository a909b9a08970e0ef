#include "worker/state/slot_states.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "worker/sync/together.h"
#include "worker/tensor/torch_compat.h"

namespace espalier {
namespace {

absl::Span<std::byte> BytesOf(const torch::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()};
}

}  // namespace

absl::Status SlotStates::Keep(const Size& size) {
  ESPALIER_CHECK(size.record_bytes % static_cast<int64_t>(sizeof(int64_t)) == 0,
                 "records are whole words");
  size_ = size;
  return CatchTorch(
      absl::StrCat("allocating ", size.bytes(), " bytes for what the slots of a step keep"), [&] {
        for (int half = 0; half < 2; ++half) {
          records_[half] = torch::zeros({size.slots, size.record_bytes}, torch::kByte);
          numbers_[half] = torch::zeros({size.slots, size.numbers},
                                        torch::TensorOptions(torch::kFloat).pinned_memory(pinned_));
        }
      });
}

void SlotStates::Reset() {
  for (const torch::Tensor& buffer : Buffers()) torch::Tensor(buffer).zero_();
}

std::vector<torch::Tensor> SlotStates::Buffers() const {
  std::vector<torch::Tensor> all;
  if (!kept()) return all;
  for (int64_t half = 0; half < 2; ++half) {
    const std::vector<torch::Tensor> parts = PartsOf(Step(half));
    all.insert(all.end(), parts.begin(), parts.end());
  }
  return all;
}

std::vector<torch::Tensor> SlotStates::PartsOf(Step step) const {
  const int64_t half = step.value() % 2;
  if (size_.numbers == 0) return {records_[half]};
  return {records_[half], numbers_[half]};
}

absl::Status SlotStates::Share(Collective& collective, SlotRange mine, Step step) {
  if (collective.world_size() == 1) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::vector<int64_t> ends, GatherValues(collective, mine.end));
  for (const torch::Tensor& part : PartsOf(Step(step.value() + 1))) {
    const auto slot_bytes = static_cast<int64_t>(part.nbytes()) / size_.slots;
    PartEnds part_ends;
    for (const int64_t end : ends) part_ends.push_back(end * slot_bytes);
    RETURN_IF_ERROR(collective.Wait(collective.StartAllGather(BytesOf(part), part_ends)));
  }
  return absl::OkStatus();
}

}  // namespace espalier
