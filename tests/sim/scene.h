// Scene: what all parts of a simulated run share: time, luck, the disk, and the first rule that was
// seen broken. Used by tests/sim. One thread.
#pragma once

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "tests/sim/chance.h"
#include "tests/sim/memories.h"
#include "tests/sim/timeline.h"

namespace espalier::sim {

// An error that ranks of a generation met by themselves.
struct Failure {
  absl::StatusCode code = absl::StatusCode::kUnknown;
  // Committed steps at the time.
  Step step;
  std::vector<NodeName> nodes;
  // Every rank met it.
  bool everywhere = false;
  // At a start, for what is missing on the node.
  bool barren = false;
};

struct Scene {
  explicit Scene(uint64_t seed) : chance(seed) {}

  Timeline timeline;
  Chance chance;
  // While false, nothing goes wrong any more.
  bool faults = true;
  // Newest checkpoint of each job on each node's disk, which survives the processes.
  std::map<JobId, std::map<NodeName, Step>> disks;
  // The newest that agents see there, damaged or not.
  std::map<JobId, std::map<NodeName, Step>> seen;
  Memories memories;
  // Until when nothing can be written to a node's disk.
  std::map<NodeName, absl::Time> full_until;
  // Until when no job starts on a node: what it needs is not there.
  std::map<NodeName, absl::Time> barren_until;
  // Nodes that have found out that they could train a job, at whatever time.
  std::set<std::pair<NodeName, JobId>> rehearsed;
  // Until when two nodes do not reach each other, the first by name first.
  std::map<std::pair<NodeName, NodeName>, absl::Time> apart_until;
  // Until when a node is too hot for jobs.
  std::map<NodeName, absl::Time> hot_until;
  // How fast the nodes' clocks go; those not named go right.
  std::map<NodeName, double> clock_rates;
  // Seconds that a sequence of a step takes a node; 0.01 for those not named.
  std::map<NodeName, double> paces;
  // Serial numbers of certificates of which an operator has read that they are refused.
  std::set<std::string> refused;
  // Jobs of which a checkpoint was lost.
  std::set<JobId> damaged;
  // The most steps that were ever committed, and what went wrong, of each job.
  std::map<JobId, Step> committed;
  std::map<JobId, std::vector<Failure>> failures;
  // What happened, for people and to compare runs.
  bool keep_trace = false;
  std::vector<std::string> trace;
  uint64_t fingerprint = 0;
  // Empty while every rule holds.
  std::string broken;

  // True about once in `n` calls while faults are on.
  bool Fault(uint64_t n) { return faults && chance.OneIn(n); }
  bool DiskFull(const NodeName& node) const {
    const auto until = full_until.find(node);
    return until != full_until.end() && timeline.now() < until->second;
  }
  bool Apart(const NodeName& a, const NodeName& b) const {
    const auto until = apart_until.find(std::minmax(a, b));
    return faults && until != apart_until.end() && timeline.now() < until->second;
  }
  // How long it takes until a node's clock has gone so far.
  absl::Duration ByClockOf(const NodeName& node, absl::Duration time) const {
    const auto rate = clock_rates.find(node);
    return rate == clock_rates.end() ? time : time / rate->second;
  }
  void Break(const std::string& rule) {
    if (broken.empty()) broken = rule;
    Trace(absl::StrCat("BROKEN ", rule));
  }
  void Trace(const std::string& text) {
    for (const char c : text)
      fingerprint = fingerprint * 1099511628211ULL + static_cast<uint8_t>(c);
    if (!keep_trace) return;
    const double at = absl::ToDoubleSeconds(timeline.now() - absl::FromUnixSeconds(1'000'000'000));
    trace.push_back(absl::StrCat(at, "s ", text));
  }
};

}  // namespace espalier::sim
