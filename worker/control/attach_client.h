// AttachClient: the ControlClient to espalierd. One thread owns the stream: it introduces the
// worker, writes what is reported and, a few times per failure_timeout, the progress; a second one
// reads. When the stream breaks, it opens another with growing pauses, for as long as the worker
// lives; training does not wait for it. Used by worker/run.cc. Thread-safe, as ControlClient says.
#pragma once

#include <functional>
#include <memory>

#include "common/base/clock.h"
#include "common/rpc/channel.h"
#include "worker/control/control_client.h"

namespace espalier {

struct AttachOptions {
  ChannelTarget target;
  // Without an answer for so long, the log says what Attach waits for.
  absl::Duration patience = absl::Seconds(3);
  // Called once, from a thread of the client, when the coordinator refuses this generation,
  // or welcomes the worker to another one.
  std::function<void(const absl::Status&)> on_fenced;
};

// The channel is made here: its errors (address, certificates) come at once.
absl::StatusOr<std::unique_ptr<ControlClient>> MakeAttachClient(AttachOptions options,
                                                                Clock& clock);

}  // namespace espalier
