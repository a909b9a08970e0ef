// Collective: the exchange of bytes among the ranks of one generation.
// Used by worker/sync. Implementations: MPI (mpi_collective.h) and threads of one process
// (in_process.h, for tests); tests/worker/collective runs one conformance suite on both.
// Thread rule: one thread (compute) calls everything except Abort and stats, which any thread may
// call. Implementations move bytes on a communication thread of their own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "worker/collective/wire.h"

namespace espalier {

// Names one operation that was started; operations complete in the order they were started.
using Ticket = Number<struct TicketTag>;

// What has come from one rank in large sums, and the time from the first message of
// each sum to its last: the quotient is the bandwidth at which that rank's data arrives, whatever
// the ranks wait for between sums.
struct Arrivals {
  int64_t bytes = 0;
  double seconds = 0;
};

struct CollectiveStats {
  // Operations completed since the start: a sign of progress.
  int64_t completed = 0;
  // Payload bytes this rank has sent.
  int64_t bytes_sent = 0;
  // By rank; empty where nothing travels.
  std::vector<Arrivals> arrivals = {};
};

// A sum over all ranks, in place.
struct Reduction {
  absl::Span<float> values;
  // How the values travel; the same on all ranks.
  WireType wire = WireType::kFp32;
  // With int8: what this rank's earlier values still lack in the sums they went into, of the size
  // of `values`; added to them now and replaced by what is left out this time. Empty: forgotten.
  absl::Span<float> residual = {};
};

class Collective {
 public:
  virtual ~Collective() = default;
  virtual Rank rank() const = 0;
  virtual int world_size() const = 0;

  // Starts summing the values over all ranks, in place. Every rank starts the same operations with
  // the same sizes in the same order. Each element is added in fp32 in rank order (0 + 1 + 2 ...),
  // so all ranks and all runs with the same inputs get the same bits, whatever the wire. Values and
  // residual must stay untouched until Wait. Never blocks on the network.
  virtual Ticket StartAllReduce(const Reduction& reduction) = 0;
  // Blocks until the operation and all before it are complete. UNAVAILABLE when a peer is gone,
  // CANCELLED after Abort, DEADLINE_EXCEEDED when nothing moved for the failure timeout.
  virtual absl::Status Wait(Ticket ticket) = 0;
  // Copies `bytes` of `root` to all ranks. Blocking; errors as of Wait.
  virtual absl::Status Broadcast(absl::Span<std::byte> bytes, Rank root) = 0;
  // Gathers equal-sized blocks in rank order: all.size() == mine.size() * world_size().
  virtual absl::Status AllGather(absl::Span<const std::byte> mine, absl::Span<std::byte> all) = 0;
  // Fails every running and later operation with `reason` (fenced, stopping). Any thread.
  virtual void Abort(absl::Status reason) = 0;
  virtual CollectiveStats stats() const = 0;
};

}  // namespace espalier
