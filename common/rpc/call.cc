#include "common/rpc/call.h"

#include <google/protobuf/stubs/common.h>
#include <grpc/support/time.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace espalier {

void SetDeadline(grpc::ClientContext& context, absl::Duration timeout) {
  const absl::Duration bounded =
      std::clamp(timeout, absl::Milliseconds(1), absl::Duration(kStreamDeadline));
  const gpr_timespec span = gpr_time_from_millis(absl::ToInt64Milliseconds(bounded), GPR_TIMESPAN);
  context.set_deadline(gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), span));
}

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

std::string LibraryVersions() {
  return absl::StrCat("gRPC ", grpc::Version(), ", protobuf ",
                      google::protobuf::internal::VersionString(GOOGLE_PROTOBUF_VERSION));
}

}  // namespace espalier
