// MpiWorld and MpiMessages: the few calls of MPI that Espalier uses, as C++: start, messages with
// completion callbacks, reading parameters back. The only file that includes mpi.h is mpi_world.cc.
// Used by communication_thread.cc. Thread rule: one thread makes them and calls everything.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "worker/collective/collective.h"

namespace espalier {

// Messages in flight, apart from those of other sets.
class MpiMessages {
 public:
  ~MpiMessages();
  MpiMessages(const MpiMessages&) = delete;
  MpiMessages& operator=(const MpiMessages&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }

  // Starts a message of less than 2^31 bytes; `done` runs inside Poll. Messages between two ranks
  // with one tag arrive in order. The memory must stay until then.
  using Done = std::function<void()>;
  void Send(absl::Span<const std::byte> bytes, int peer, int tag, Done done);
  void Receive(absl::Span<std::byte> bytes, int peer, int tag, Done done);

  // Completes what can be completed; returns how many messages were. UNAVAILABLE when MPI reports
  // an error, for instance a lost connection; from then on always the same.
  absl::StatusOr<int> Poll();
  int64_t pending() const;
  // Ranks of the peers that messages in flight wait for.
  std::set<int> PendingPeers() const;
  // What has come from each rank since the last call.
  std::vector<Arrivals> TakeArrivals();
  // Gives up what is in flight; no callback runs.
  void CancelAll();

 private:
  friend class MpiWorld;
  struct State;
  MpiMessages();
  std::unique_ptr<State> state_;
  int rank_ = 0;
  int size_ = 1;
};

class MpiWorld {
 public:
  // MPI_Init and a communicator of our own, whose errors are returned. Once per process.
  static absl::StatusOr<std::unique_ptr<MpiWorld>> Start();
  ~MpiWorld();
  MpiWorld(const MpiWorld&) = delete;
  MpiWorld& operator=(const MpiWorld&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  // "Open MPI v4.1.4 ...".
  static std::string LibraryVersion();

  std::unique_ptr<MpiMessages> NewMessages();
  // Moves what MPI still holds of completed messages: the last bytes of a send leave only inside
  // some call of MPI, so an idle rank makes this one now and then.
  void Progress();

  // Value of an Open MPI parameter as this process has it (MPI_T). NOT_FOUND: no such parameter.
  absl::StatusOr<std::string> Parameter(absl::string_view name) const;

  // Ends MPI in an orderly way; all ranks call it, with no message in flight. Without it (after a
  // fault) the process must leave by _exit.
  void Finish();

 private:
  struct State;
  MpiWorld();
  std::unique_ptr<State> state_;
  int rank_ = 0;
  int size_ = 1;
};

}  // namespace espalier
