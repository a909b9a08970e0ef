// MpiWorld and MpiMessages: the few calls of MPI that Espalier uses, as C++: start, messages with
// completion callbacks, reading parameters back. The only file that includes mpi.h is mpi_world.cc.
// Used by communication_thread.cc, beacon.h, transport.h and worker/command_line.cc. Thread rule:
// one thread makes them and calls everything.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "worker/collective/collective.h"
#include "worker/collective/messages.h"

namespace espalier {

// Messages in flight, apart from those of other sets.
class MpiMessages final : public Messages {
 public:
  ~MpiMessages() override;
  void Send(absl::Span<const std::byte> bytes, int peer, int tag, Done done) override;
  void Receive(absl::Span<std::byte> bytes, int peer, int tag, Done done) override;
  absl::StatusOr<int> Poll() override;
  int64_t pending() const override;
  std::set<int> PendingPeers() const override;

  // What has come from each rank since the last call.
  std::vector<Arrivals> TakeArrivals();
  // Gives up what is in flight; no callback runs.
  void CancelAll();

 private:
  friend class MpiWorld;
  struct State;
  MpiMessages(int rank, int size);
  std::unique_ptr<State> state_;
};

// How many threads may call MPI, as a library names what it gives.
enum class MpiThreads { kSingle, kFunneled, kSerialized, kMultiple };
// FAILED_PRECONDITION unless one thread of several, the one that started MPI, may call it. Names
// the level, the library, and what to do.
absl::Status CheckMpiThreads(MpiThreads given, absl::string_view library);

class MpiWorld {
 public:
  // MPI_Init_thread and a communicator of our own, whose errors are returned. Once per process.
  // FAILED_PRECONDITION as of CheckMpiThreads.
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
