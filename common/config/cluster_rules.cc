#include <set>

#include "absl/strings/str_cat.h"
#include "common/base/address.h"
#include "common/base/day_hours.h"
#include "common/config/rules.h"
#include "common/config/yaml_tree.h"

namespace espalier {
namespace {

// gRPC's credentials for plain TCP take no other loopback address.
bool IsPlainLoopback(const std::string& host) { return host == "127.0.0.1" || host == "::1"; }

void CheckGrpc(const v1::ClusterSpec& spec, const std::string& where, Problems& problems) {
  if (!spec.has_listen()) return;
  const absl::StatusOr<HostPort> listen = ParseAddress(spec.listen());
  if (!listen.ok() || !IsIpAddress(listen->host)) {
    problems.Add(where, absl::StrCat("listen is ", Quoted(spec.listen()),
                                     "; allowed: IP:PORT, for example 127.0.0.1:7070"));
  } else if (!spec.has_tls() && !IsLoopback(listen->host)) {
    problems.Add(where, absl::StrCat("listen is ", Quoted(spec.listen()),
                                     ", which other machines can reach, and there is no tls "
                                     "section; make certificates with 'espalier pki' and name them "
                                     "under tls, or leave listen out: programs of this machine "
                                     "use the Unix socket in the state folder"));
  } else if (!spec.has_tls() && !IsPlainLoopback(listen->host)) {
    problems.Add(where, absl::StrCat("listen is ", Quoted(spec.listen()),
                                     "; allowed without a tls section: 127.0.0.1:PORT and "
                                     "[::1]:PORT"));
  }
}

void CheckListen(const v1::ClusterSpec& spec, const std::string& where, Problems& problems) {
  CheckGrpc(spec, where, problems);
  const absl::StatusOr<HostPort> metrics = ParseAddress(spec.metrics_listen());
  if (!metrics.ok() || !IsIpAddress(metrics->host)) {
    problems.Add(where, absl::StrCat("metrics_listen is ", Quoted(spec.metrics_listen()),
                                     "; allowed: IP:PORT, for example 127.0.0.1:9464"));
  } else if (!IsLoopback(metrics->host)) {
    problems.Add(where, absl::StrCat("metrics_listen is ", Quoted(spec.metrics_listen()),
                                     ", which other machines can reach without an identity; use "
                                     "127.0.0.1 and bring it out through ssh -L or a TLS proxy"));
  }
  if (spec.has_advertise() && !ParseAddress(spec.advertise()).ok()) {
    problems.Add(where, absl::StrCat("advertise is ", Quoted(spec.advertise()),
                                     "; allowed: HOST:PORT, for example 10.0.0.1:7070"));
  } else if (spec.has_advertise() && !spec.has_tls()) {
    problems.Add(where, absl::StrCat("advertise is ", Quoted(spec.advertise()),
                                     ", for workers of other machines, and those need TLS; make "
                                     "certificates with 'espalier pki' and name them under tls, or "
                                     "leave advertise out"));
  }
}

void CheckHours(const v1::NodeSpec& node, const std::string& path, const std::string& where,
                Problems& problems) {
  const auto check = [&](const auto& texts, const char* field) {
    for (const std::string& text : texts) {
      const absl::Status valid = ParseDayHours(text).status();
      if (!valid.ok()) problems.Add(where, absl::StrCat(path, field, ": ", valid.message()));
    }
  };
  check(node.hours(), ".hours");
  check(node.quiet_hours(), ".quiet_hours");
}

}  // namespace

void CheckNodeRules(const v1::NodeSpec& node, const std::string& path, const std::string& where,
                    Problems& problems) {
  if (!IsName(node.name())) {
    problems.Add(where,
                 absl::StrCat(path, ".name is ", Quoted(node.name()), "; allowed: ", kNameRule));
  }
  if (!IsIpAddress(node.address())) {
    problems.Add(where, absl::StrCat(path, ".address is ", Quoted(node.address()),
                                     "; allowed: an IP address (a host name would let MPI choose "
                                     "a slower network)"));
  }
  CheckHours(node, path, where, problems);
}

namespace {

void CheckNodes(const v1::ClusterSpec& spec, const std::string& where, Problems& problems) {
  std::set<std::string> names;
  bool any_loopback = false;
  bool any_remote = false;
  for (int i = 0; i < spec.nodes_size(); ++i) {
    const v1::NodeSpec& node = spec.nodes(i);
    CheckNodeRules(node, absl::StrCat("nodes[", i, "]"), where, problems);
    if (!names.insert(node.name()).second) {
      problems.Add(where, absl::StrCat("two nodes are named ", Quoted(node.name()),
                                       "; give each its own name"));
    }
    (IsLoopback(node.address()) ? any_loopback : any_remote) = true;
    if (spec.has_tls() && !node.has_tls()) {
      problems.Add(where,
                   absl::StrCat("nodes[", i, "] (", Quoted(node.name()),
                                ") has no tls section, but espalierd has one; give the files of "
                                "the worker's certificate on that node"));
    }
  }
  if (any_loopback && any_remote) {
    problems.Add(where,
                 "some nodes have a loopback address and others have not, so that MPI could not "
                 "connect them; give every node its address on the common network");
  }
}

}  // namespace

void CheckClusterRules(const v1::ClusterSpec& spec, const std::string& where, Problems& problems) {
  CheckListen(spec, where, problems);
  CheckNodes(spec, where, problems);
}

}  // namespace espalier
