// PeerUser by getpeereid of the BSDs.
#include <unistd.h>

#include <cerrno>

#include "common/rpc/local_listener.h"

namespace espalier {

absl::StatusOr<uid_t> PeerUser(int socket) {
  uid_t user = 0;
  gid_t group = 0;
  if (getpeereid(socket, &user, &group) == 0) return user;
  return absl::ErrnoToStatus(errno, "cannot tell who is at the other end of the socket");
}

}  // namespace espalier
