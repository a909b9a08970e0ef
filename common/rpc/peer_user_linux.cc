// PeerUser by SO_PEERCRED of Linux.
#include <sys/socket.h>

#include <cerrno>

#include "common/rpc/local_listener.h"

namespace espalier {

absl::StatusOr<uid_t> PeerUser(int socket) {
  ucred peer = {};
  socklen_t size = sizeof peer;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0) return peer.uid;
  return absl::ErrnoToStatus(errno, "cannot tell who is at the other end of the socket");
}

}  // namespace espalier
