// How programs of one machine find an espalierd and are known to it without TLS: by the Unix socket
// and the token in its state folder, which only its owner may enter. Used by channel.cc,
// diagnose.cc, server_credentials.cc, coordinator/service and coordinator/ctl. Any thread.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace espalier {

// Where the state folder lies unless somebody says otherwise.
inline constexpr char kDefaultStateDir[] = "~/.local/state/espalier";

// STATE_DIR/espalierd.sock. INVALID_ARGUMENT when that is longer than some system allows.
absl::StatusOr<std::string> SocketPath(const std::string& state_dir);

// The address of a ChannelTarget from what a person or a launcher gives as --coordinator: HOST:PORT
// stays; what holds a '/' or begins with '.' or '~' is a state folder and becomes "unix:SOCKET".
absl::StatusOr<std::string> CoordinatorAddress(const std::string& where);

// The path of "unix:PATH"; nothing for other addresses.
std::optional<std::string> SocketOf(absl::string_view address);

// The path of the socket in the default state folder, if its espalierd said that it listens at
// `address`, which is no socket.
std::optional<std::string> SocketOfOwn(absl::string_view address);

// The secret that a call over TCP without TLS must carry: 64 hexadecimal digits in STATE_DIR/token,
// for the owner only. Made when there is none; else the one that is there.
absl::StatusOr<std::string> TakeToken(const std::string& state_dir);

// The token for a coordinator at `address`: from `file` when one is given; else from the default
// state folder, if its espalierd listens there. Empty when there is none to give, because
// `address` is a Unix socket, beyond loopback, or unknown to that folder.
absl::StatusOr<std::string> FindToken(const std::string& address, const std::string& file);

// The request header that carries it.
inline constexpr char kTokenHeader[] = "espalier-token";

}  // namespace espalier
