#include "common/rpc/role.h"

#include <array>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace espalier {
namespace {

constexpr std::array kRoles = {Role::kOperator, Role::kViewer, Role::kWorker, Role::kTrainer,
                               Role::kCoordinator};
constexpr std::array<absl::string_view, 6> kReads = {"ListJobs",  "GetJob", "Watch",
                                                     "ListNodes", "Logs",   "ListEvents"};

bool IsOfNode(Role role) { return role == Role::kWorker || role == Role::kTrainer; }

}  // namespace

absl::string_view RoleName(Role role) {
  switch (role) {
    case Role::kOperator:
      return "operator";
    case Role::kViewer:
      return "viewer";
    case Role::kWorker:
      return "worker";
    case Role::kTrainer:
      return "trainer";
    case Role::kCoordinator:
      return "coordinator";
  }
  return "unknown";
}

absl::StatusOr<Role> ParseRole(absl::string_view name) {
  for (Role role : kRoles) {
    if (RoleName(role) == name) return role;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "role '", name, "' is unknown; allowed: operator, viewer, worker, trainer, coordinator"));
}

bool MayCall(Role role, absl::string_view method) {
  if (absl::StartsWith(method, "/espalier.v1.WorkerService/")) return IsOfNode(role);
  if (method == "/espalier.v1.AgentService/Attach") return IsOfNode(role);
  constexpr absl::string_view kOperatorService = "/espalier.v1.OperatorService/";
  if (!absl::StartsWith(method, kOperatorService)) return false;
  if (role == Role::kOperator) return true;
  const absl::string_view verb = method.substr(kOperatorService.size());
  for (absl::string_view read : kReads) {
    if (verb == read) return role == Role::kViewer;
  }
  return false;
}

bool IsForStrangers(absl::string_view method) { return method == "/espalier.v1.JoinService/Join"; }

std::string RolesFor(absl::string_view method) {
  std::vector<absl::string_view> names;
  for (Role role : kRoles) {
    if (MayCall(role, method)) names.push_back(RoleName(role));
  }
  return names.empty() ? "nobody" : absl::StrJoin(names, " or ");
}

}  // namespace espalier
