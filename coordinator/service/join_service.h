// JoinService over gRPC: what answers machines that have no certificate yet. It makes the
// certificate and asks the core whether the token is good for it; what the core does not confirm
// is thrown away. Used by daemon.cc. Thread rule: runs on gRPC's threads.
#pragma once

#include <string>

#include "common/base/clock.h"
#include "coordinator/loop/inbox.h"
#include "coordinator/service/attempt_limit.h"
#include "coordinator/service/enrolment.h"
#include "espalier/v1/join.grpc.pb.h"

namespace espalier {

class JoinService : public v1::JoinService::CallbackService {
 public:
  // All outlive the service.
  JoinService(Inbox& inbox, const Enrolment& enrolment, Clock& clock)
      : inbox_(inbox), enrolment_(enrolment), clock_(clock) {}

  // One listener serves strangers and everybody else, because a second port would be one more to
  // name, to open and to watch; that strangers reach this method alone is decided in one place
  // (IsForStrangers in common/rpc/role.h) for every call, before it gets here.
  grpc::ServerUnaryReactor* Join(grpc::CallbackServerContext* context,
                                 const v1::JoinRequest* request,
                                 v1::JoinResponse* response) override;

 private:
  absl::StatusOr<Enrolment::Certificate> Prepare(const v1::JoinRequest& request) const;
  // Counts failures of the peer, says them in the log, and ends the call.
  void Finish(grpc::ServerUnaryReactor* reactor, const std::string& peer, const std::string& node,
              const absl::Status& status);

  Inbox& inbox_;
  const Enrolment& enrolment_;
  Clock& clock_;
  AttemptLimit limit_;
};

}  // namespace espalier
