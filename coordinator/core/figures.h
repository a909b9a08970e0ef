// Figures: what the steps of a job say about its speed and loss, for people and metrics; decides
// nothing. Kept by the core so that the CLI and the metrics read one place. Used by state.h. Plain
// value.
#pragma once

#include <cstdint>
#include <optional>

#include "common/base/ids.h"

namespace espalier {

// One committed step as a rank saw it; the fields are those of worker.proto's StepReport that
// people look at.
struct StepFigures {
  // Number of the step, from 0.
  Step step;
  // Nats per token over the global batch.
  double loss = 0;
  // Loss tokens of the global batch.
  int64_t tokens = 0;
  double gradient_norm = 0;
  double learning_rate = 0;
  bool skipped = false;
  // Sequences the rank computed.
  int32_t shard = 0;
  double step_seconds = 0;
};

class Figures {
 public:
  // To be called once for each step. A new generation is measured afresh, by another Figures.
  void Add(const StepFigures& step);

  // Moving average over about the last 20 steps; 0 while unknown.
  double tokens_per_second() const;
  // Until `total` steps are committed, when `committed` are; absent while the speed is unknown.
  std::optional<double> EtaSeconds(Step committed, Step total) const;

 private:
  double average_step_seconds_ = 0;
  double average_tokens_ = 0;
  int64_t averaged_ = 0;
};

}  // namespace espalier
