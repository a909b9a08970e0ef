// The progress of a job while one watches: a redrawn frame on a terminal, appended lines elsewhere.
// Pure functions and values; used by `watch` and `submit --wait`. Not thread-safe.
#pragma once

#include <optional>
#include <string>

#include "coordinator/ctl/text.h"
#include "espalier/v1/operator.pb.h"

namespace espalier::ctl {

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
