// SampleLog: which samples each rank used, for audits (launch.sample_log). One file per rank and
// run, one line per step: {"step":12,"samples":[4,9]}, written by all ranks before any commits the
// step. The files of a run share a prefix that grows from run to run; where two runs hold the same
// step, the later one is what counts, since the earlier one's work was lost with it. Used by
// trainer.h and worker/session.h. One thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/file_system.h"
#include "worker/sync/together.h"

namespace espalier {

class SampleLog {
 public:
  // Every rank calls this: rank 0's wall clock names the run.
  static absl::StatusOr<std::unique_ptr<SampleLog>> Open(const RankContext& context,
                                                         FileSystem& files,
                                                         const std::string& folder);
  // Handed to the system before it returns, so that it outlives the process.
  absl::Status Append(Step step, absl::Span<const int64_t> samples);

 private:
  explicit SampleLog(std::unique_ptr<WritableFile> file) : file_(std::move(file)) {}
  std::unique_ptr<WritableFile> file_;
};

}  // namespace espalier
