// NodeShare: how much of a step a machine is to compute at most: all that it can, unless its
// NodeSpec names a largest share, and less while it is spared: on its battery, in quiet hours, or
// while somebody works on it. Used by coordinator/core and coordinator/service. Plain value.
#pragma once

#include <optional>
#include <string>

#include "absl/time/time.h"
#include "coordinator/planner/node_health.h"
#include "espalier/v1/cluster.pb.h"
#include "espalier/v1/node.pb.h"

namespace espalier {

class NodeShare {
 public:
  // With each report, and a few times a second with the newest. A battery spares for 10 s longer
  // than it is used, somebody who works there for a minute.
  void Look(const v1::NodeSpec& spec, const v1::NodeReport& report, const Moment& at);

  // "runs on its battery (on_battery is slow)", for people, after the node's name; empty: it is not
  // spared.
  const std::string& why() const { return why_; }
  // Of what it would compute otherwise; 1: all.
  double Part(const v1::NodeSpec& spec) const;

 private:
  void LookAtLoad(const v1::NodeCondition& condition, absl::Time now);

  std::string why_;
  std::optional<absl::Time> on_battery_at_;
  std::optional<absl::Time> busy_since_;
  std::optional<absl::Time> idle_since_;
  bool in_use_ = false;
};

// Of a job's global batch.
double LargestShare(const v1::NodeSpec& spec);

// A policy is what a NodeSpec says of when and how much jobs use the machine: its fields from
// on_battery on. What `from` has of it replaces that of `to`.
void MergePolicy(const v1::NodeSpec& from, v1::NodeSpec& to);

}  // namespace espalier
