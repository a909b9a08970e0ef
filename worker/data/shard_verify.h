// Verifies the files of a prepared data folder against its manifest, remembering what has passed.
// Used by dataset.cc only. One thread.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "worker/data/dataset.h"

namespace espalier {

// Sizes and headers of all shards, and SHA-256 as Dataset::Verify says. The first bad one, as
// Dataset::Open reports it.
absl::Status VerifyShards(const std::string& folder, const TokenManifest& manifest,
                          const Dataset::Options& options);

}  // namespace espalier
