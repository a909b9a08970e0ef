#include "worker/state/checkpoint_beside.h"

#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/tensor/torch_compat.h"

namespace espalier {
namespace {

absl::Status Cancelled() {
  return absl::CancelledError("the run ends before this checkpoint was written");
}

// Replaces what reads a tensor by the bytes it gives now.
absl::Status CopyTensors(std::vector<NamedTensor>& tensors, const std::atomic<bool>& cancelled) {
  for (NamedTensor& tensor : tensors) {
    if (cancelled) return Cancelled();
    ASSIGN_OR_RETURN(const absl::Span<const std::byte> bytes, tensor.read());
    // A tensor, for its alignment and since it is not set to zero first.
    torch::Tensor copy;
    RETURN_IF_ERROR(
        CatchTorch(absl::StrCat("copying ", tensor.spec.name, " for a checkpoint"), [&] {
          copy = torch::empty({static_cast<int64_t>(bytes.size())}, torch::kByte);
          std::memcpy(copy.data_ptr(), bytes.data(), bytes.size());
        }));
    tensor.read = [copy, &cancelled]() -> absl::StatusOr<absl::Span<const std::byte>> {
      if (cancelled) return Cancelled();
      return absl::MakeConstSpan(static_cast<const std::byte*>(copy.data_ptr()),
                                 static_cast<size_t>(copy.numel()));
    };
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<CheckpointContent> CopyContent(const CheckpointContent& content,
                                              const std::atomic<bool>& cancelled) {
  CheckpointContent copy = content;
  RETURN_IF_ERROR(CopyTensors(copy.model, cancelled));
  RETURN_IF_ERROR(CopyTensors(copy.optimizer, cancelled));
  return copy;
}

int64_t TensorBytesOf(const CheckpointContent& content) {
  int64_t bytes = 0;
  for (const std::vector<NamedTensor>* tensors : {&content.model, &content.optimizer}) {
    for (const NamedTensor& tensor : *tensors) {
      bytes += TensorBytes(tensor.spec).value_or(0);
    }
  }
  return bytes;
}

CheckpointBeside::CheckpointBeside(Replica& replica, std::optional<CheckpointContent> content,
                                   CheckpointStore& store, Clock& clock, HashThreads threads)
    : store_(store),
      clock_(clock),
      step_(replica.step()),
      begun_(clock.Monotonic()),
      bytes_(content ? TensorBytesOf(*content) : 0),
      copy_(absl::NotFoundError("this rank writes no copy")) {
  copying_.emplace(
      [this, &replica, threads, content = std::move(content)]() -> absl::Status {
        if (content) copy_ = CopyContent(*content, cancelled_);
        RETURN_IF_ERROR(CatchTorch("hashing the replica", [&] {
          fingerprint_ = replica.Fingerprint(threads, &cancelled_);
        }));
        return cancelled_ ? Cancelled() : absl::OkStatus();
      },
      clock);
}

bool CheckpointBeside::Cancel(absl::Duration patience) {
  cancelled_ = true;
  work().End(patience);
  return !working();
}

void CheckpointBeside::StartWriting() {
  writing_.emplace(
      [this] {
        if (copy_.ok()) {
          published_ = store_.Write(*copy_, [this] { return cancelled_.load(); });
          copy_ = absl::NotFoundError("it is written");
        } else if (!absl::IsNotFound(copy_.status())) {
          published_ = copy_.status();
        }
        return absl::OkStatus();
      },
      clock_);
}

}  // namespace espalier
