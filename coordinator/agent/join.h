// Join: how a machine gets the certificate of a node (proto/espalier/v1/join.proto), and where that
// lies. Used by program.cc and tests. One thread; waits at most for its timeout.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/rpc/pem_file.h"
#include "common/rpc/pinned_ca.h"

namespace espalier {

struct JoinOptions {
  PinnedServer coordinator;
  std::string node;
  std::string token;
  // The agent's; the identity lies in its folder "identity".
  std::string state_dir;
  // espalier-worker here, where it is another than the launcher's.
  std::string worker;
  absl::Duration timeout = absl::Seconds(10);
};

// Who this machine is, since it has joined.
struct NodeIdentity {
  std::string node;
  std::string coordinator;
  TlsFiles files;
};

// Makes a key, has it certified, and keeps key, certificate and CA: all three, readable by the
// owner alone, or nothing. The token is told to the server only when its CA has the fingerprint.
// Errors: ALREADY_EXISTS this machine has joined; as of FetchPinnedCa; as of JoinService; and those
// of the state folder, which shows before the token is used up whether it can be written.
absl::StatusOr<NodeIdentity> Join(const JoinOptions& options, Clock& clock);

// Of an earlier Join; absent: there was none.
absl::StatusOr<std::optional<NodeIdentity>> ReadIdentity(const std::string& state_dir);

}  // namespace espalier
