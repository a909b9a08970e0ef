// RftProgress: what a run of rft has sampled so far, and the file that holds it, so that a run that
// is ended goes on where it was: written after every block of prompts, whole or not at all, and
// trusted by its hash alone. The ranks take the furthest that one of them finds in its checkpoint
// folder. Used by rft_practice.h and rft_table.h. Compute thread; JSON is pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/file_system.h"
#include "espalier/v1/job.pb.h"
#include "worker/sync/together.h"

namespace espalier {

inline constexpr char kRftProgressName[] = "rft.progress.json";

// The first accepted completion of a prompt.
struct RftRow {
  int64_t prompt = 0;  // its row in the table
  int64_t sample = 0;
  std::vector<int32_t> ids;
  std::string text;
  friend bool operator==(const RftRow&, const RftRow&) = default;
};

// Of prompts that were answered with the likeliest ids.
struct RftTest {
  int64_t answers = 0;
  double accuracy = 0;
  double answer_rate = 0;
  friend bool operator==(const RftTest&, const RftTest&) = default;
};

struct RftProgress {
  std::string run;                // RftRunName: what the rows are a function of
  std::optional<RftTest> before;  // the model as it began
  int64_t prompts = 0;            // that are done, the first so many
  std::vector<RftRow> rows;       // by prompt
  int64_t samples = 0;            // made
  int64_t new_tokens = 0;
  double sample_seconds = 0;
  double verify_seconds = 0;
  friend bool operator==(const RftProgress&, const RftProgress&) = default;
};

// Equal for runs whose rows are equal.
std::string RftRunName(const v1::JobSpec& spec, absl::string_view data_hash);

std::string RftProgressToJson(const RftProgress& progress);
// DATA_LOSS: it is cut, altered, or of another version.
absl::StatusOr<RftProgress> RftProgressFromJson(absl::string_view json);

// The furthest of what the ranks find in their folders, of this run; without rows where none has
// any. Every rank calls it and has the same. Files that are damaged or of another run are told and
// left out.
absl::StatusOr<RftProgress> LoadRftProgress(const RankContext& context, FileSystem& files,
                                            const std::string& folder, const std::string& run);

}  // namespace espalier
