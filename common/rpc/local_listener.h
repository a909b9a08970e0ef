// LocalListener: the Unix socket of a gRPC server. It accepts by itself, asks the system who is at
// the other end, and gives the connection to the server when that is the owner or root; calls of
// anybody else are answered with PERMISSION_DENIED and the reason. Used by coordinator/service.
// Thread rule: made and destroyed by one thread; a thread of its own accepts.
#pragma once

#include <grpcpp/server.h>
#include <sys/types.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace espalier {

class LocalListener {
 public:
  struct Options {
    // Its folder is the owner's alone. A socket that a dead process left there is replaced, so
    // whoever calls must know that no other lives (StateLock).
    std::string path;
    // Gets the connections, trusted whole; outlives the listener.
    grpc::Server* server = nullptr;
    // Answered, as root is.
    uid_t owner = geteuid();
    // Hears of every connection of another user, for the log; may be empty.
    std::function<void(absl::string_view why)> refused;
  };

  // FAILED_PRECONDITION when something else than a socket lies at the path; UNAVAILABLE: the system
  // refuses.
  static absl::StatusOr<std::unique_ptr<LocalListener>> Open(Options options);
  // Accepts no more and removes the socket; connections that are there go on.
  ~LocalListener();

 private:
  class Strangers;
  LocalListener(Options options, int socket, int stop_reader, int stop_writer);
  void Accept();
  void Take(int connection);

  const Options options_;
  const int socket_;
  // A pipe that ends the wait for connections.
  const int stop_reader_;
  const int stop_writer_;
  std::unique_ptr<Strangers> strangers_;
  std::thread thread_;
};

}  // namespace espalier
