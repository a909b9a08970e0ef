// Roles of certificates, and what each may call. Used by certificate.h, pki.h and
// server_credentials.h. Pure functions: any thread.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace espalier {

enum class Role {
  kOperator,     // Changes and reads jobs.
  kViewer,       // Reads jobs.
  kWorker,       // A node: attaches as a rank of what espalierd started there, and as its agent.
  kTrainer,      // A node whose people may also start an mpirun by hand, which makes a job.
  kCoordinator,  // espalierd itself: the only one whose certificate serves.
};

// "operator", "viewer", "worker", "trainer", "coordinator".
absl::string_view RoleName(Role role);
// INVALID_ARGUMENT names the roles there are.
absl::StatusOr<Role> ParseRole(absl::string_view name);

// `method` as gRPC names it: "/espalier.v1.OperatorService/Pause". Unknown methods: nobody.
bool MayCall(Role role, absl::string_view method);
// The one method that answers who has no certificate: it asks for a token instead.
bool IsForStrangers(absl::string_view method);
// "operator or viewer": who may call the method, for messages.
std::string RolesFor(absl::string_view method);

}  // namespace espalier
