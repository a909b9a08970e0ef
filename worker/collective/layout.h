// Layout: the memory of one operation as its algorithms see it: the ranks' parts, their chunks, and
// the form in which a chunk travels, which lies in the memory of the values that it replaces (it is
// never longer). Used by announcement.h, exchange.h and its halves (reduce_scatter.h,
// all_gather.h), and in_process.h. One thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "worker/collective/collective.h"
#include "worker/collective/partition.h"

namespace espalier {

struct ExchangeOptions {
  int64_t chunk_bytes = 256 << 10;  // of one message
  int depth = 8;                    // messages in flight per peer and direction
};

class Layout {
 public:
  // Stops the program when the operation's parts or its root do not fit.
  Layout(const Operation& operation, const ExchangeOptions& options, int rank, int ranks);

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  int64_t size_bytes() const { return part_ends_.back() * element_bytes_; }
  const PartEnds& part_ends() const { return part_ends_; }
  WireType wire() const { return wire_; }

  // Chunks of a rank's part: all but its last are of the same size.
  int64_t Chunks(int owner) const {
    return ChunkCount(PartOf(part_ends_, owner).size(), chunk_elements_);
  }
  Range Chunk(int owner, int64_t index) const {
    return ChunkOf(PartOf(part_ends_, owner), chunk_elements_, index);
  }
  // Bytes of a whole chunk on the wire.
  int64_t ChunkBytes() const { return EncodedBytes(chunk_elements_); }

  // The values of a range; only of sums.
  absl::Span<float> Values(const Range& range) const {
    return {reinterpret_cast<float*>(memory_) + range.begin, static_cast<size_t>(range.size())};
  }
  // Where the form of a range is, between Encode and Decode.
  absl::Span<std::byte> Encoded(const Range& range) const {
    return {memory_ + range.begin * element_bytes_,
            static_cast<size_t>(EncodedBytes(range.size()))};
  }
  void Encode(const Range& range) const;
  void Decode(const Range& range) const;

 private:
  int64_t EncodedBytes(int64_t elements) const {
    return IsEncoded(wire_) ? WireBytes(wire_, elements) : elements * element_bytes_;
  }

  const int rank_;
  const int ranks_;
  std::byte* memory_ = nullptr;
  int64_t element_bytes_ = 1;
  WireType wire_ = WireType::kFp32;
  absl::Span<float> residual_;
  PartEnds part_ends_;
  int64_t chunk_elements_ = 1;
};

}  // namespace espalier
