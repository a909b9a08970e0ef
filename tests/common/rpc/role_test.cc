#include "common/rpc/role.h"

#include <gtest/gtest.h>

#include "common/rpc/call.h"

namespace espalier {
namespace {

TEST(Roles, UnknownMethodsAreForNobody) {
  for (Role role :
       {Role::kOperator, Role::kViewer, Role::kWorker, Role::kTrainer, Role::kCoordinator}) {
    EXPECT_FALSE(MayCall(role, "")) << RoleName(role);
    EXPECT_FALSE(MayCall(role, "/other.Service/Pause")) << RoleName(role);
  }
  EXPECT_FALSE(MayCall(Role::kViewer, "/espalier.v1.OperatorService/AddedLater"));
  EXPECT_EQ(RolesFor("/other.Service/Pause"), "nobody");
}

TEST(Roles, OnlyNodesAttachAgentsAndNobodyStartsDaemonsOverTls) {
  for (Role role :
       {Role::kOperator, Role::kViewer, Role::kWorker, Role::kTrainer, Role::kCoordinator}) {
    EXPECT_EQ(MayCall(role, "/espalier.v1.AgentService/Attach"),
              role == Role::kWorker || role == Role::kTrainer);
    EXPECT_FALSE(MayCall(role, "/espalier.v1.AgentService/Exec")) << RoleName(role);
  }
}

TEST(Roles, NamesAreReadBack) {
  EXPECT_EQ(ParseRole("viewer").value(), Role::kViewer);
  EXPECT_EQ(ParseRole("admin").status().message(),
            "role 'admin' is unknown; allowed: operator, viewer, worker, trainer, coordinator");
}

TEST(RpcStatus, CodesAndMessagesSurviveBothWays) {
  for (int code = 0; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), code == 0 ? "" : "why");
    EXPECT_EQ(FromGrpc(ToGrpc(status)), status);
    EXPECT_EQ(static_cast<int>(ToGrpc(status).error_code()), code);
  }
}

}  // namespace
}  // namespace espalier
