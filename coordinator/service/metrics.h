// The metrics of espalierd as Prometheus families, made from a view at the moment of a scrape: a
// job that is gone from the view has no series left behind. Names: common/observe/metric_names.h.
// Used by daemon.cc. Thread rule: any thread.
#pragma once

#include <prometheus/collectable.h>
#include <prometheus/exposer.h>
#include <prometheus/metric_family.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "coordinator/loop/inbox.h"
#include "coordinator/service/view.h"

namespace espalier {

struct MetricsMoment {
  // Monotonic.
  absl::Duration now;
  size_t queue_depth = 0;
  int64_t rejected = 0;
  // A job's series vanish when it has been final for so long.
  absl::Duration final_jobs_kept = absl::Hours(1);
};

std::vector<prometheus::MetricFamily> MakeMetrics(const View& view, const MetricsMoment& moment);

// What the exposer asks at each scrape. The board, inbox and clock outlive it.
class MetricsSource : public prometheus::Collectable {
 public:
  MetricsSource(const ViewBoard& board, const Inbox& inbox, Clock& clock)
      : board_(board), inbox_(inbox), clock_(clock) {}
  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  const ViewBoard& board_;
  const Inbox& inbox_;
  Clock& clock_;
};

// Serves /metrics on IP:PORT. UNAVAILABLE: another program listens there; INVALID_ARGUMENT: it is
// no address of this machine.
absl::StatusOr<std::unique_ptr<prometheus::Exposer>> Expose(const std::string& listen);

}  // namespace espalier
