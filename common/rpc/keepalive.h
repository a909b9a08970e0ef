// How client and server notice a dead connection: a ping after a quiet interval, and how long its
// answer may take. Shared by both ends, because the server punishes pings more frequent than it
// was told to expect. Constants only.
#pragma once

namespace espalier {

constexpr int kKeepaliveIntervalMs = 5000;
constexpr int kKeepaliveTimeoutMs = 5000;

}  // namespace espalier
