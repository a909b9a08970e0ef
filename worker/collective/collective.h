// Collective: the exchange of bytes among the ranks of one generation.
// Used by worker/sync, worker/state, worker/rollout and worker/train. Implementations: MPI
// (mpi_collective.h) and threads of one process (in_process.h, for tests); tests/worker/collective
// runs one conformance suite on both.
// Thread rule: one thread (compute) calls everything except Abort and stats, which any thread may
// call. Implementations move bytes on a communication thread of their own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "worker/collective/partition.h"
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

// A sum over all ranks, in place. Each element is added in fp32 in rank order (0 + 1 + 2 ...), so
// all ranks and all runs with the same inputs get the same bits, whatever the wire; with int64 (an
// even number of values, and parts of even sizes) two of them are one integer.
struct Reduction {
  absl::Span<float> values;
  // How the values travel; the same on all ranks.
  WireType wire = WireType::kFp32;
  // With int8: what this rank's earlier values still lack in the sums they went into, of the size
  // of `values`; added to them now and replaced by what is left out this time. Empty: forgotten.
  absl::Span<float> residual = {};
};

// What all ranks do together, with the same sizes, parts, wire and root on each.
struct Operation {
  enum class Kind {
    kAllReduce,      // every rank has all sums
    kReduceScatter,  // every rank has the sums of its part, to the bit what an all-reduce over the
                     // same parts gives; what lies in the other parts is undefined
    kAllGather,      // every rank's part of the bytes comes to all
    kBroadcast,      // the root's bytes come to all
  };
  Kind kind = Kind::kAllReduce;
  Reduction reduction = {};          // of the first two
  absl::Span<std::byte> bytes = {};  // of the others; any size
  PartEnds part_ends = {};           // of elements (sums) or bytes; empty: as equal as possible
  Rank root = {};                    // of a broadcast
};

// Memory: a started operation's spans belong to it, neither to be read nor written nor freed, until
// a Wait for it returns OK. After any error they still do, since a thread may be adding into them:
// they are free only when Quiesce has returned OK. So an owner that may leave early (a failed pass,
// a destructor) calls Abort and Quiesce before its memory goes. Best is memory that outlives the
// last operation and is left as it is after a failure: a rank of the same host may be copying a
// last chunk out of it (README.md).
class Collective {
 public:
  virtual ~Collective() = default;
  virtual Rank rank() const = 0;
  virtual int world_size() const = 0;

  // Starts an operation; every rank starts the same ones in the same order. Never blocks on the
  // network. Parts that do not fit the span stop the program.
  virtual Ticket Start(const Operation& operation) = 0;
  // Blocks until the operation and all before it are complete. UNAVAILABLE when a peer is gone,
  // CANCELLED after Abort, DEADLINE_EXCEEDED when nothing moved for the failure timeout,
  // FAILED_PRECONDITION when another rank has started another operation, which it names.
  virtual absl::Status Wait(Ticket ticket) = 0;
  // Blocks until nothing in this process touches a span of any started operation: all are complete,
  // or have failed. OK in both cases. DEADLINE_EXCEEDED when that cannot be known, because one call
  // of the network does not return: then the memory must be left to the end of the process.
  virtual absl::Status Quiesce() = 0;
  // Fails every running and later operation with `reason` (fenced, stopping). Any thread.
  virtual void Abort(absl::Status reason) = 0;
  virtual CollectiveStats stats() const = 0;

  // Start, by name.
  Ticket StartAllReduce(const Reduction& reduction, PartEnds part_ends = {});
  Ticket StartReduceScatter(const Reduction& reduction, PartEnds part_ends = {});
  Ticket StartAllGather(absl::Span<std::byte> bytes, PartEnds part_ends = {});
  Ticket StartBroadcast(absl::Span<std::byte> bytes, Rank root);
  // Blocking, for small values: copies `bytes` of `root` to all ranks; gathers equal-sized blocks
  // in rank order, all.size() == mine.size() * world_size(). Errors as of Wait.
  absl::Status Broadcast(absl::Span<std::byte> bytes, Rank root);
  absl::Status AllGather(absl::Span<const std::byte> mine, absl::Span<std::byte> all);
};

}  // namespace espalier
