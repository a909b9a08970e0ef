// RunIdentity: what must be the same on all ranks, and between a checkpoint and the run that
// resumes from it, for the order of samples and the mathematics to hold. Used at the start of a
// generation and by checkpoints. Plain data: any thread.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "espalier/v1/job.pb.h"
#include "worker/sync/together.h"

namespace espalier {

struct RunIdentity {
  v1::JobSpec spec;
  std::string data_hash;  // SHA-256 (hex) of the data's manifest
  int64_t training_samples = 0;
  // Written beside the weights; empty: left out.
  std::string tokenizer_json;
  std::string tokenizer_config_json;
};

// Fails on all ranks alike, with the rank and the key, unless all have the same job and data.
// Paths, device and threads may differ from node to node.
absl::Status CheckSameRun(const RankContext& context, const RunIdentity& identity);

}  // namespace espalier
