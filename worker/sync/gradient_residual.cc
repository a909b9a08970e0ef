#include "worker/sync/gradient_residual.h"

#include <algorithm>

#include "common/base/status_macros.h"
#include "worker/collective/partition.h"
#include "worker/tensor/torch_compat.h"

namespace espalier {

absl::Status GradientResidual::Keep(int64_t elements) {
  gathered_ = true;
  return CatchTorch("allocating the residual of int8 gradients",
                    [&] { values_ = torch::zeros({elements}, torch::kFloat); });
}

absl::Status GradientResidual::Gather(const RankContext& context) {
  if (!kept() || gathered_) return absl::OkStatus();
  Collective& collective = context.collective;
  const int64_t elements = values_.numel();
  for (int64_t begin = 0; begin < elements; begin += kGatheredAtOnce) {
    const int64_t size = std::min(kGatheredAtOnce, elements - begin);
    RETURN_IF_ERROR(collective.Wait(collective.StartAllReduce({Of(begin, size)})));
    context.progress.Worked();
  }
  gathered_ = true;
  return absl::OkStatus();
}

void GradientResidual::Scatter(Rank rank, int ranks) {
  if (!kept() || !gathered_) return;
  const int64_t elements = values_.numel();
  const Range mine = EqualPart(elements, static_cast<int>(rank.value()), ranks);
  float* data = values_.data_ptr<float>();
  std::fill(data, data + mine.begin, 0.0F);
  std::fill(data + mine.end, data + elements, 0.0F);
  gathered_ = false;
}

void GradientResidual::Rescale(double factor) {
  if (kept() && factor != 1) values_.mul_(factor);
}

absl::Span<float> GradientResidual::Of(int64_t begin, int64_t size) {
  if (!kept()) return {};
  return absl::MakeSpan(values_.data_ptr<float>() + begin, static_cast<size_t>(size));
}

}  // namespace espalier
