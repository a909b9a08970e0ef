// The algorithms of the exchange over an MpiWorld: pipelined reduce-scatter and all-gather,
// broadcast, gather. Each starts messages whose completion starts the next; the caller polls the
// world until nothing is pending. Used by mpi_collective.cc. Communication thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "common/base/ids.h"
#include "worker/collective/mpi_world.h"
#include "worker/collective/partition.h"

namespace espalier {

struct ExchangeOptions {
  int64_t chunk_bytes;
  int depth;
};

// One all-reduce. Rank r adds up piece r of the values: it receives everyone's chunk of it into
// scratch memory, adds them in rank order, and sends the sum to everyone, chunk by chunk.
class AllReduce {
 public:
  AllReduce(MpiWorld& world, const ExchangeOptions& options, absl::Span<float> values);
  void Start();
  int64_t bytes_sent() const { return bytes_sent_; }

 private:
  struct Peer {
    int64_t next_send = 0;  // chunk of the peer's piece to send next
  };
  void SendNext(int peer);
  void ReceiveSum(int peer, int64_t chunk);
  void ReceiveParts(int64_t chunk);
  void PartArrived(int64_t chunk);
  void SumAndSend(int64_t chunk);
  Range Chunk(int rank, int64_t index) const;
  absl::Span<std::byte> Bytes(const Range& range) const;
  float* Scratch(int64_t chunk, int peer);

  MpiWorld& world_;
  const ExchangeOptions options_;
  const int64_t chunk_elements_;
  absl::Span<float> values_;
  std::vector<Peer> peers_;
  std::vector<int> parts_missing_;  // per chunk in flight of my piece
  std::vector<float> scratch_;      // [depth][ranks][chunk]
  int64_t bytes_sent_ = 0;
};

// Starts copying `bytes` of `root` to all ranks; returns the bytes this rank will have sent.
int64_t StartBroadcast(MpiWorld& world, const ExchangeOptions& options, absl::Span<std::byte> bytes,
                       int root);

// Starts gathering equal blocks in rank order; returns the bytes this rank will have sent.
int64_t StartAllGather(MpiWorld& world, const ExchangeOptions& options,
                       absl::Span<const std::byte> mine, absl::Span<std::byte> all);

}  // namespace espalier
