#include "coordinator/service/metric_builder.h"

#include <algorithm>
#include <limits>

namespace espalier {
namespace {

prometheus::MetricType TypeOf(MetricKind kind) {
  switch (kind) {
    case MetricKind::kGauge:
      return prometheus::MetricType::Gauge;
    case MetricKind::kCounter:
      return prometheus::MetricType::Counter;
    case MetricKind::kHistogram:
      return prometheus::MetricType::Histogram;
  }
  return prometheus::MetricType::Untyped;
}

}  // namespace

prometheus::MetricFamily& MetricBuilder::Family(const MetricName& name) {
  const auto found = std::find_if(families_.begin(), families_.end(),
                                  [&](const auto& family) { return family.name == name.name; });
  if (found != families_.end()) return *found;
  prometheus::MetricFamily family;
  family.name = std::string(name.name);
  family.help = std::string(name.help);
  family.type = TypeOf(name.kind);
  families_.push_back(std::move(family));
  return families_.back();
}

void MetricBuilder::Add(const MetricName& name, const MetricLabels& labels, double value) {
  prometheus::ClientMetric metric;
  for (const auto& [key, text] : labels) {
    prometheus::ClientMetric::Label label;
    label.name = key;
    label.value = text;
    metric.label.push_back(std::move(label));
  }
  if (name.kind == MetricKind::kCounter) {
    metric.counter.value = value;
  } else {
    metric.gauge.value = value;
  }
  Family(name).metric.push_back(std::move(metric));
}

void MetricBuilder::AddHistogram(const MetricName& name, const Latency& latency) {
  prometheus::ClientMetric metric;
  uint64_t count = 0;
  for (size_t i = 0; i < latency.counts().size(); ++i) {
    count += static_cast<uint64_t>(latency.counts()[i]);
    prometheus::ClientMetric::Bucket bucket;
    bucket.cumulative_count = count;
    bucket.upper_bound =
        i < Latency::kBounds.size() ? Latency::kBounds[i] : std::numeric_limits<double>::infinity();
    metric.histogram.bucket.push_back(bucket);
  }
  metric.histogram.sample_count = count;
  metric.histogram.sample_sum = latency.sum_seconds();
  Family(name).metric.push_back(std::move(metric));
}

}  // namespace espalier
