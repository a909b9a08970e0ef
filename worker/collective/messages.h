// Messages: what the exchange needs of a network: messages of bytes between two ranks, whose
// completion runs a callback inside Poll. Implementations: MPI (mpi_world.h) and threads of one
// process (in_process.cc). Used by exchange.h and its halves (reduce_scatter.h, all_gather.h) and
// announcement.h. Thread rule: one thread calls everything.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace espalier {

// Tags of messages, by what they carry; chunks have one each (ChunkTag).
inline constexpr int kPeerReportTag = 0;
inline constexpr int kAnnouncementTag = 1;

// What the chunk of a rank's part is on its way for.
enum class Purpose { kToBeAdded, kFinal };
// More than can be in flight of one part.
inline constexpr int kChunkTags = 1 << 12;
// Every message in flight between two ranks has a tag of its own, so that the order in which they
// are started does not matter.
inline int ChunkTag(Purpose purpose, int owner, int64_t chunk) {
  const int part = 1 + 2 * owner + static_cast<int>(purpose);
  return part * kChunkTags + static_cast<int>(chunk % kChunkTags);
}

class Messages {
 public:
  Messages(int rank, int size) : rank_(rank), size_(size) {}
  virtual ~Messages() = default;
  int rank() const { return rank_; }
  int size() const { return size_; }

  // Starts a message of less than 2^31 bytes; `done` runs inside Poll. Messages between two ranks
  // with one tag arrive in order. The memory must stay until then.
  using Done = std::function<void()>;
  virtual void Send(absl::Span<const std::byte> bytes, int peer, int tag, Done done) = 0;
  virtual void Receive(absl::Span<std::byte> bytes, int peer, int tag, Done done) = 0;

  // Completes what can be completed; returns how many messages were. UNAVAILABLE when a message
  // has failed, for instance because its connection is lost; from then on always the same.
  virtual absl::StatusOr<int> Poll() = 0;
  virtual int64_t pending() const = 0;
  // Ranks of the peers that messages in flight wait for.
  virtual std::set<int> PendingPeers() const = 0;

 private:
  const int rank_;
  const int size_;
};

}  // namespace espalier
