// MetricBuilder: collects samples into Prometheus families, in the order of their first sample.
// Private to the exporter. Plain value.
#pragma once

#include <prometheus/metric_family.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/observe/metric_names.h"
#include "coordinator/loop/outlets.h"

namespace espalier {

using MetricLabels = std::vector<std::pair<std::string, std::string>>;

class MetricBuilder {
 public:
  // A gauge or counter sample, as the name says.
  void Add(const MetricName& name, const MetricLabels& labels, double value);
  void AddHistogram(const MetricName& name, const Latency& latency);
  std::vector<prometheus::MetricFamily> Take() && { return std::move(families_); }

 private:
  prometheus::MetricFamily& Family(const MetricName& name);
  std::vector<prometheus::MetricFamily> families_;
};

}  // namespace espalier
