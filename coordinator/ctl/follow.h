// Following a job to its end on the terminal: `watch` and `submit --wait`: a redrawn frame on a
// terminal, appended lines elsewhere. Used by verbs_follow.cc and verbs_submit.cc. One thread; what
// makes the text is pure.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "coordinator/ctl/client.h"
#include "coordinator/ctl/options.h"
#include "coordinator/ctl/text.h"
#include "espalier/v1/operator.pb.h"

namespace espalier::ctl {

// Redraws a frame on a terminal, appends lines elsewhere, prints one JSON document a line with
// -o json. Returns the last status: final, unless nobody reads the output any more.
absl::StatusOr<v1::JobStatus> ShowProgress(Context& context, OperatorClient& client,
                                           const std::string& job);

// Waits in silence for the final status.
absl::StatusOr<v1::JobStatus> WaitForEnd(OperatorClient& client, const std::string& job);

// The exit code for the last status seen: that of a final state, or kDone when the reader left.
ExitCode ExitCodeAfter(const v1::JobStatus& status);

// "[#####.....]" or blocks with unicode; `width` characters, brackets included.
std::string ProgressBar(double fraction, int width, const View& view);

// The whole frame, lines ending in newlines, at most view.height - 1 of them.
std::string RenderFrame(const v1::JobStatus& status, const View& view);

// Terminal codes that replace the `previous` frame (empty: none yet) by `next`. Long lines are cut
// by the terminal, not wrapped, so that the count of lines stays right.
std::string Redraw(const std::string& previous, const std::string& next);

// Decides which statuses earn a line when output is not a terminal: every change of state, reason
// or generation at once, progress at most once per interval, the final state always.
class PlainProgress {
 public:
  explicit PlainProgress(absl::Duration interval) : interval_(interval) {}
  // The line for this status, with its newline, or nothing.
  std::optional<std::string> Next(const v1::JobStatus& status, const View& view);

 private:
  absl::Duration interval_;
  std::string last_standing_;
  int64_t last_step_ = -1;
  absl::Time last_time_ = absl::InfinitePast();
};

}  // namespace espalier::ctl
