// Every metric of metric_names.h and task_figures.h, in one list. Used by
// tests/coordinator/service/metrics_test.cc: the exporter and the alerts are checked against it.
#pragma once

#include <array>

#include "common/observe/metric_names.h"
#include "common/observe/task_figures.h"

namespace espalier {

inline constexpr std::array kAllMetrics = {
    metrics::kBuildInfo,
    metrics::kNodes,
    metrics::kAgents,
    metrics::kNodeMemoryAvailable,
    metrics::kNodeSwapUsed,
    metrics::kNodeEnergy,
    metrics::kNodeDiskFree,
    metrics::kNodeClockAhead,
    metrics::kNodeOtherLoad,
    metrics::kNodeSpared,
    metrics::kJournalCommitSeconds,
    metrics::kJournalFailures,
    metrics::kLoopHandlingSeconds,
    metrics::kLoopEvents,
    metrics::kLoopQueueDepth,
    metrics::kLoopRejected,
    metrics::kJobInfo,
    metrics::kJobState,
    metrics::kJobStep,
    metrics::kJobTotalSteps,
    metrics::kJobLoss,
    metrics::kJobValidationLoss,
    metrics::kJobWithoutGain,
    metrics::kJobRateReductions,
    metrics::kJobWarning,
    metrics::kJobGradientNorm,
    metrics::kJobLearningRate,
    metrics::kJobTokensPerSecond,
    metrics::kJobTaskFigure,
    metrics::kJobEvaluationFigure,
    metrics::kJobSkippedSteps,
    metrics::kJobGeneration,
    metrics::kJobRestarts,
    metrics::kJobInterruptions,
    metrics::kJobInterrupted,
    metrics::kJobWorkersAttached,
    metrics::kJobWorkersWanted,
    metrics::kJobCheckpointStep,
    metrics::kJobCheckpointAge,
    metrics::kJobCheckpointSize,
    metrics::kJobCheckpointFailures,
    metrics::kWorkerAccountSeconds,
    metrics::kWorkerExchangeBytes,
    metrics::kWorkerPeerBandwidth,
    metrics::kWorkerStepSeconds,
    metrics::kWorkerMemory,
    metrics::kWorkerMemoryPeak,
    metrics::kWorkerMemoryLimit,
    metrics::kWorkerPassPeak,
    metrics::kWorkerPassPredicted,
    metrics::kWorkerMicroBatch,
    metrics::kWorkerSilent,
    metrics::kWorkerShard,
};

}  // namespace espalier
