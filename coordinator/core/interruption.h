// Interruption: how long a job stood still because its generation was replaced, after a fault or
// for a change of nodes, and with what: told when it commits steps again. Used by transaction.cc,
// generation.cc, attach.cc, reports.cc, state.h and coordinator/service. Plain values: any thread.
#pragma once

#include <array>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/core/job_state.h"

namespace espalier {

class Interruption {
 public:
  // In the order in which they follow each other; each lasts until the next begins.
  enum Phase {
    kDetect,  // since a rank last made progress; for a planned change, nothing
    kStop,    // the processes are being ended; for a planned change, after the step in hand
    kWait,    // back-off, leases, nodes
    kLaunch,  // until a rank has attached
    kAttach,  // until all have
    kState,   // the ranks join their world and agree on the state to start from
    kStep,    // the first step
  };
  static constexpr size_t kPhases = 7;
  // "detect", as a label too.
  static absl::string_view Name(Phase phase);
  using Seconds = std::array<double, kPhases>;

  // The job has entered this state. `progressed_at`: when a rank last made progress.
  void Entered(JobState state, absl::Time progressed_at, absl::Time now);
  // Nothing of the generation runs any more.
  void Ended(absl::Time now) { Begin(kWait, now); }
  // A rank has attached, or all have.
  enum class Ranks { kFirst, kAll };
  void Attached(Ranks which, absl::Time now);
  // A step was committed. "stood still for 3.12 s: detect 0.2 s, ...", when it was the first after
  // an interruption.
  std::optional<std::string> Committed(absl::Time now);

  // Of all interruptions that are over, by phase, and how many there were.
  const Seconds& totals() const { return totals_; }
  int64_t count() const { return count_; }

 private:
  void Begin(Phase phase, absl::Time now);

  // Of the one at hand; absent: none.
  std::optional<Phase> phase_;
  absl::Time since_;
  Seconds seconds_ = {};
  Seconds totals_ = {};
  int64_t count_ = 0;
};

}  // namespace espalier
