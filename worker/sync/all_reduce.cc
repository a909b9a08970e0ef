#include "worker/sync/all_reduce.h"

#include <vector>

#include "common/base/status_macros.h"
#include "worker/sync/together.h"
#include "worker/tensor/torch_compat.h"

namespace espalier {
namespace {

// Of the dense gradient; the rows that are looked up travel apart, unless all sums are exact.
int64_t ElementsInBuckets(const AllReduceSynchroniser::Parts& parts) {
  return parts.exact != nullptr && parts.exact->kept()
             ? parts.parameters.dense_elements()
             : parts.parameters.elements_before_embedding();
}

}  // namespace

AllReduceSynchroniser::AllReduceSynchroniser(Collective& collective, const Parts& parts,
                                             const Options& options)
    : collective_(collective),
      parts_(parts),
      exchange_(collective, GradientExchange::MemoryOf(parts.parameters, parts.host_gradient),
                BucketEnds(parts.parameters, ElementsInBuckets(parts), options.bucket_elements),
                {options.wire, &parts.residual, parts.exact, parts.scale}),
      lookups_(collective, parts.parameters, options.wire) {}

absl::StatusOr<EmbeddingRows> AllReduceSynchroniser::Begin(absl::Span<const int64_t> tokens) {
  if (Exact()) return EmbeddingRows();
  return lookups_.Begin(tokens);
}

int64_t AllReduceSynchroniser::LookupBytes(absl::Span<const int64_t> tokens) const {
  return Exact() ? 0 : lookups_.Bytes(tokens);
}

void AllReduceSynchroniser::PassDone() { exchange_.Collect(); }

void AllReduceSynchroniser::GradientsFinal(int64_t end) { exchange_.GradientsFinal(end); }

absl::Status AllReduceSynchroniser::PassesDone() { return exchange_.StartRest(); }

absl::Status AllReduceSynchroniser::FinishSums() {
  RETURN_IF_ERROR(lookups_.StartSum());
  RETURN_IF_ERROR(exchange_.Finish());
  return lookups_.Finish();
}

// The norm is rank 0's, so that devices that round differently clip and skip alike.
absl::StatusOr<StepTotals> AllReduceSynchroniser::Agree(const StepTotals& mine) {
  StepTotals part = mine;
  part.norm = 0;
  if (collective_.rank() == Rank(0)) {
    RETURN_IF_ERROR(CatchTorch("computing the norm of the gradient",
                               [&] { part.norm = parts_.optimizer.GradientNorm(); }));
  }
  ASSIGN_OR_RETURN(const std::vector<StepTotals> parts, GatherValues(collective_, part));
  StepTotals total{.norm = parts[0].norm};
  for (const StepTotals& one : parts) {
    total.loss += one.loss;
    total.tokens += one.tokens;
    total.finite &= one.finite;
    total.failed += one.failed;
  }
  return total;
}

absl::Status AllReduceSynchroniser::Update(const AdamW::Update& update) {
  return CatchTorch("updating the parameters", [&] { parts_.optimizer.Apply(update); });
}

absl::Status AllReduceSynchroniser::Skip() {
  return CatchTorch("clearing the gradients", [&] { parts_.parameters.ZeroGradients(); });
}

WireType WireOf(v1::GradientDtype dtype) {
  switch (dtype) {
    case v1::GRADIENT_DTYPE_BF16:
      return WireType::kBf16;
    case v1::GRADIENT_DTYPE_INT8:
      return WireType::kInt8;
    default:
      return WireType::kFp32;
  }
}

}  // namespace espalier
