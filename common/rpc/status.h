// Conversion between gRPC's status and absl::Status (the codes are the same numbers). Used wherever
// a call enters or leaves the program. Pure functions: any thread.
#pragma once

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace espalier {

absl::Status FromGrpc(const grpc::Status& status);
grpc::Status ToGrpc(const absl::Status& status);

}  // namespace espalier
