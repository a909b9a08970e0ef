// Beacon: sends this rank's state to every peer a few times per failure timeout, and feeds
// theirs to a PeerWatch. Used by communication_thread.cc. Communication thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "worker/collective/mpi_world.h"
#include "worker/collective/peer_watch.h"

namespace espalier {

class Beacon {
 public:
  struct Options {
    absl::Duration failure_timeout;
    std::function<PeerReport()> state;
  };
  Beacon(MpiWorld& world, Options options, Clock& clock);

  // Does its part when it is time; cheap otherwise. Errors as of MpiMessages::Poll.
  absl::Status Tick();
  const PeerWatch& watch() const { return watch_; }
  // Nothing is in flight afterwards; before the end of MPI.
  void Stop();

 private:
  struct Peer {
    PeerReport sent;
    PeerReport received;
    bool sending = false;
  };
  void Receive(int peer);

  const Options options_;
  Clock& clock_;
  const absl::Duration interval_;
  PeerWatch watch_;
  std::unique_ptr<MpiMessages> messages_;
  std::vector<Peer> peers_;
  absl::Duration next_;
};

}  // namespace espalier
