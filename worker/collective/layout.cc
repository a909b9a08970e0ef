#include "worker/collective/layout.h"

#include <algorithm>

#include "common/base/check.h"

namespace espalier {
namespace {

// Small parts are cut finer, so that adding and sending overlap. Whole blocks of the wire, so that
// the bits do not depend on the chunks.
int64_t ChunkElements(int64_t largest_part, int64_t element_bytes, const ExchangeOptions& options) {
  const int64_t least = (256 << 10) / element_bytes;
  const int64_t most = std::max<int64_t>(1, options.chunk_bytes / element_bytes);
  const int64_t chunk =
      std::clamp(ChunkCount(largest_part, options.depth), std::min(least, most), most);
  return ChunkCount(chunk, kWireBlock) * kWireBlock;
}

PartEnds PartsOf(const Operation& operation, int64_t elements, int ranks) {
  if (operation.kind == Operation::Kind::kBroadcast) {
    const auto root = static_cast<int>(operation.root.value());
    ESPALIER_CHECK(root >= 0 && root < ranks, "the root is a rank of this world");
    return AllOf(elements, root, ranks);
  }
  if (operation.reduction.wire == WireType::kInt64 && operation.part_ends.empty()) {
    ESPALIER_CHECK(elements % 2 == 0, "two values are one integer");
    PartEnds ends = EqualParts(elements / 2, ranks);
    for (int64_t& end : ends) end *= 2;
    return ends;
  }
  if (operation.part_ends.empty()) return EqualParts(elements, ranks);
  ESPALIER_CHECK(AreParts(operation.part_ends, elements, ranks), "every rank has a part");
  return operation.part_ends;
}

}  // namespace

Layout::Layout(const Operation& operation, const ExchangeOptions& options, int rank, int ranks)
    : rank_(rank), ranks_(ranks) {
  const Reduction& reduction = operation.reduction;
  int64_t elements = 0;
  switch (operation.kind) {
    case Operation::Kind::kAllReduce:
    case Operation::Kind::kReduceScatter:
      ESPALIER_CHECK(
          reduction.residual.empty() || reduction.residual.size() == reduction.values.size(),
          "every value has its residual");
      memory_ = reinterpret_cast<std::byte*>(reduction.values.data());
      element_bytes_ = sizeof(float);
      elements = static_cast<int64_t>(reduction.values.size());
      wire_ = reduction.wire;
      residual_ = reduction.residual;
      break;
    case Operation::Kind::kAllGather:
    case Operation::Kind::kBroadcast:
      memory_ = operation.bytes.data();
      elements = static_cast<int64_t>(operation.bytes.size());
      break;
  }
  part_ends_ = PartsOf(operation, elements, ranks);
  int64_t largest = 0;
  for (int owner = 0; owner < ranks; ++owner) {
    largest = std::max(largest, PartOf(part_ends_, owner).size());
  }
  chunk_elements_ = ChunkElements(largest, element_bytes_, options);
}

void Layout::Encode(const Range& range) const {
  if (!IsEncoded(wire_)) return;
  EncodeInPlace(wire_, Values(range),
                residual_.empty() ? residual_ : residual_.subspan(range.begin, range.size()));
}

void Layout::Decode(const Range& range) const {
  if (IsEncoded(wire_)) DecodeInPlace(wire_, Values(range));
}

}  // namespace espalier
