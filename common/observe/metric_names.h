// Every metric of espalierd: name, kind, help text and labels. Prometheus conventions: prefix
// espalier_, base units in the name, _total for counters. Labels are job (its id), node, rank, and
// enumerations. Used by the exporter (coordinator/service); a new one goes into all_metrics.h too.
#pragma once

#include "absl/strings/string_view.h"

namespace espalier {

enum class MetricKind {
  kGauge,      // goes up and down
  kCounter,    // only grows within one life of espalierd
  kHistogram,  // counts in buckets
};

struct MetricName {
  absl::string_view name;
  MetricKind kind;
  absl::string_view help;
};

namespace metrics {

inline constexpr MetricName kBuildInfo = {"espalier_build_info", MetricKind::kGauge,
                                          "1, with the version of espalierd."};
inline constexpr MetricName kNodes = {"espalier_nodes", MetricKind::kGauge,
                                      "Nodes by state: free, busy, set_aside, drained, unusable."};
inline constexpr MetricName kAgents = {"espalier_node_agents", MetricKind::kGauge,
                                       "Nodes by their agent: none, attached, silent, gone."};
inline constexpr MetricName kNodeMemoryAvailable = {
    "espalier_node_memory_available_bytes", MetricKind::kGauge, "What programs could still get."};
inline constexpr MetricName kNodeSwapUsed = {"espalier_node_swap_used_bytes", MetricKind::kGauge,
                                             "Swap that is in use on the node."};
inline constexpr MetricName kNodeEnergy = {"espalier_node_energy_joules_total",
                                           MetricKind::kCounter,
                                           "Used by its processors since its agent began."};
inline constexpr MetricName kNodeDiskFree = {"espalier_node_disk_free_bytes", MetricKind::kGauge,
                                             "Free on the disk of the agent's state folder."};
inline constexpr MetricName kNodeClockAhead = {
    "espalier_node_clock_ahead_seconds", MetricKind::kGauge, "The node's clock less espalierd's."};
inline constexpr MetricName kNodeOtherLoad = {"espalier_node_other_load", MetricKind::kGauge,
                                              "Of its processors, what others keep busy."};
inline constexpr MetricName kNodeSpared = {"espalier_node_spared", MetricKind::kGauge,
                                           "1 while it is to compute less than it could."};
inline constexpr MetricName kJournalCommitSeconds = {
    "espalier_journal_commit_seconds", MetricKind::kHistogram,
    "Seconds of one journal transaction, including its fsync."};
inline constexpr MetricName kJournalFailures = {"espalier_journal_failures_total",
                                                MetricKind::kCounter,
                                                "Transactions that failed and were tried again."};
inline constexpr MetricName kLoopHandlingSeconds = {
    "espalier_loop_handling_seconds", MetricKind::kHistogram, "From a message to all its effects."};
inline constexpr MetricName kLoopEvents = {"espalier_loop_events_total", MetricKind::kCounter,
                                           "Events taken by the event loop."};
inline constexpr MetricName kLoopQueueDepth = {"espalier_loop_queue_depth", MetricKind::kGauge,
                                               "Events waiting for the event loop."};
inline constexpr MetricName kLoopRejected = {"espalier_loop_rejected_total", MetricKind::kCounter,
                                             "Events refused because the queue was full."};

inline constexpr MetricName kJobInfo = {"espalier_job_info", MetricKind::kGauge,
                                        "1, with the name of the job."};
inline constexpr MetricName kJobState = {"espalier_job_state", MetricKind::kGauge,
                                         "1 for the state the job is in, 0 for the others."};
inline constexpr MetricName kJobStep = {"espalier_job_step", MetricKind::kGauge,
                                        "Committed optimizer steps."};
inline constexpr MetricName kJobTotalSteps = {"espalier_job_total_steps", MetricKind::kGauge,
                                              "Optimizer steps of the whole job."};
inline constexpr MetricName kJobLoss = {"espalier_job_loss", MetricKind::kGauge,
                                        "Nats per token of the last step; NaN: not finite."};
inline constexpr MetricName kJobValidationLoss = {
    "espalier_job_validation_loss", MetricKind::kGauge, "Nats per token of the last evaluation."};
inline constexpr MetricName kJobWithoutGain = {"espalier_job_evaluations_without_gain",
                                               MetricKind::kGauge,
                                               "Evaluations in a row without a gain."};
inline constexpr MetricName kJobRateReductions = {"espalier_job_learning_rate_reductions_total",
                                                  MetricKind::kCounter, "Made on a plateau."};
inline constexpr MetricName kJobWarning = {
    "espalier_job_warning", MetricKind::kGauge,
    "1 while the newest steps break that rule: loss_spread, loss_rise, norm_spike, slow_down."};
inline constexpr MetricName kJobGradientNorm = {"espalier_job_gradient_norm", MetricKind::kGauge,
                                                "Global L2 norm of the last gradient."};
inline constexpr MetricName kJobLearningRate = {"espalier_job_learning_rate", MetricKind::kGauge,
                                                "Learning rate of the last step."};
inline constexpr MetricName kJobTokensPerSecond = {
    "espalier_job_tokens_per_second", MetricKind::kGauge, "Tokens per second over the last steps."};
inline constexpr MetricName kJobSkippedSteps = {
    "espalier_job_skipped_steps_total", MetricKind::kCounter, "Updates of no finite value."};
inline constexpr MetricName kJobGeneration = {"espalier_job_generation", MetricKind::kGauge,
                                              "Number of the newest generation (MPI world)."};
inline constexpr MetricName kJobRestarts = {"espalier_job_restarts_total", MetricKind::kCounter,
                                            "Restarts after a fault, by cause."};
inline constexpr MetricName kJobInterruptions = {"espalier_job_interruptions_total",
                                                 MetricKind::kCounter,
                                                 "Faults and changes of nodes that are over."};
inline constexpr MetricName kJobInterrupted = {
    "espalier_job_interrupted_seconds_total", MetricKind::kCounter,
    "Seconds that it stood still by then: detect, stop, wait, launch, attach, state, step."};
inline constexpr MetricName kJobWorkersAttached = {
    "espalier_job_workers_attached", MetricKind::kGauge, "Workers with an open Attach stream."};
inline constexpr MetricName kJobWorkersWanted = {"espalier_job_workers_wanted", MetricKind::kGauge,
                                                 "Ranks of the newest generation."};
inline constexpr MetricName kJobCheckpointStep = {
    "espalier_job_checkpoint_step", MetricKind::kGauge, "Step of the newest published checkpoint."};
inline constexpr MetricName kJobCheckpointAge = {"espalier_job_checkpoint_age_seconds",
                                                 MetricKind::kGauge,
                                                 "Seconds since the newest checkpoint."};
inline constexpr MetricName kJobCheckpointSize = {
    "espalier_job_checkpoint_size_bytes", MetricKind::kGauge, "Size of the newest checkpoint."};
inline constexpr MetricName kJobCheckpointFailures = {"espalier_job_checkpoint_failures_total",
                                                      MetricKind::kCounter,
                                                      "Checkpoints that could not be published."};

inline constexpr MetricName kWorkerAccountSeconds = {
    "espalier_worker_account_seconds_total", MetricKind::kCounter,
    "Wall seconds of a worker by account: compute, exchange_wait, data_wait, rollout, reward, "
    "checkpoint, paused, recovering, idle. Every second is in exactly one."};
inline constexpr MetricName kWorkerExchangeBytes = {"espalier_worker_exchange_bytes_total",
                                                    MetricKind::kCounter,
                                                    "Gradient bytes sent by a worker."};
inline constexpr MetricName kWorkerPeerBandwidth = {
    "espalier_worker_peer_bandwidth_bytes_per_second", MetricKind::kGauge,
    "Rate at which gradients of the rank in label peer arrived at a worker in its last step, while "
    "they were arriving."};
inline constexpr MetricName kWorkerStepSeconds = {
    "espalier_worker_step_seconds", MetricKind::kGauge, "Wall seconds of the worker's last step."};
inline constexpr MetricName kWorkerMemory = {"espalier_worker_memory_bytes", MetricKind::kGauge,
                                             "Resident memory of the worker."};
inline constexpr MetricName kWorkerMemoryPeak = {"espalier_worker_memory_peak_bytes",
                                                 MetricKind::kGauge,
                                                 "Highest resident memory of the worker."};
inline constexpr MetricName kWorkerMemoryLimit = {"espalier_worker_memory_limit_bytes",
                                                  MetricKind::kGauge,
                                                  "Most memory that the worker may use."};
inline constexpr MetricName kWorkerPassPeak = {
    "espalier_worker_pass_peak_bytes", MetricKind::kGauge,
    "Highest memory of the passes of the worker's last step."};
inline constexpr MetricName kWorkerPassPredicted = {
    "espalier_worker_pass_predicted_bytes", MetricKind::kGauge,
    "What the memory governor predicted for the passes of the worker's last step."};
inline constexpr MetricName kWorkerMicroBatch = {
    "espalier_worker_micro_batch_sequences", MetricKind::kGauge,
    "Sequences of a micro-batch of the worker, at most."};
inline constexpr MetricName kWorkerSilent = {"espalier_worker_silent_seconds", MetricKind::kGauge,
                                             "Seconds since any progress counter grew."};
inline constexpr MetricName kWorkerShard = {"espalier_worker_shard_sequences", MetricKind::kGauge,
                                            "Sequences of each step that this rank computes."};

}  // namespace metrics

}  // namespace espalier
