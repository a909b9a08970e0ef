// The algorithms of the exchange over MpiMessages: pipelined reduce-scatter and all-gather,
// broadcast, gather. Each starts messages whose completion starts the next; the caller polls them
// until nothing is pending. Used by communication_thread.cc. Communication thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "common/base/ids.h"
#include "worker/collective/collective.h"
#include "worker/collective/mpi_world.h"
#include "worker/collective/partition.h"

namespace espalier {

struct ExchangeOptions {
  int64_t chunk_bytes;
  int depth;
};

// Memory that outlives one operation, so that steps allocate nothing. Grows only.
class ScratchMemory {
 public:
  // Uninitialised; valid until the next call.
  std::byte* Get(int64_t bytes) {
    if (bytes > size_) {
      memory_.reset(new std::byte[bytes]);
      size_ = bytes;
    }
    return memory_.get();
  }

 private:
  std::unique_ptr<std::byte[]> memory_;
  int64_t size_ = 0;
};

// One all-reduce. Rank r adds up piece r of the values: it receives everyone's chunk of it into
// scratch memory, adds them in rank order, and sends the sum to everyone, chunk by chunk. What is
// not fp32 is encoded in the memory of its values, which its sum replaces in the end.
class AllReduce {
 public:
  // All outlive the messages.
  AllReduce(MpiMessages& messages, const ExchangeOptions& options, ScratchMemory& scratch,
            const Reduction& reduction);
  void Start();
  int64_t bytes_sent() const { return bytes_sent_; }

 private:
  void SendNext(int peer);
  void ReceiveSum(int peer, int64_t chunk);
  void ReceiveParts(int64_t chunk);
  void PartArrived(int64_t chunk);
  void SumAndSend(int64_t chunk);
  Range Chunk(int rank, int64_t index) const;
  absl::Span<float> Values(const Range& range) const;
  absl::Span<std::byte> Encoded(const Range& range) const;
  void Encode(const Range& range);
  void Decode(const Range& range);
  std::byte* Part(int64_t chunk, int peer);

  MpiMessages& messages_;
  const int rank_;
  const int ranks_;
  const int depth_;
  const Reduction reduction_;
  const Range mine_;  // the piece this rank adds up
  const int64_t chunk_elements_;
  const int64_t chunk_bytes_;       // of one encoded chunk
  const int64_t parts_depth_;       // chunks of my piece being received at a time
  std::vector<int64_t> next_send_;  // per peer: chunk of its piece to send next
  std::vector<int> parts_missing_;  // per chunk of my piece
  std::vector<int> sums_unsent_;    // per chunk of my piece
  std::byte* parts_;                // [parts_depth_][ranks - 1][chunk_bytes_]
  int64_t bytes_sent_ = 0;
};

// Starts copying `bytes` of `root` to all ranks; returns the bytes this rank will have sent.
int64_t StartBroadcast(MpiMessages& messages, const ExchangeOptions& options,
                       absl::Span<std::byte> bytes, int root);

// Starts gathering equal blocks in rank order; returns the bytes this rank will have sent.
int64_t StartAllGather(MpiMessages& messages, const ExchangeOptions& options,
                       absl::Span<const std::byte> mine, absl::Span<std::byte> all);

}  // namespace espalier
