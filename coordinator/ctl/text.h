// Numbers, times and states as people read them. Used by coordinator/ctl. Pure functions: any
// thread.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "espalier/v1/operator.pb.h"

namespace espalier::ctl {

// How and when something is shown. Tests fix all of it.
struct View {
  absl::Time now;
  absl::TimeZone zone = absl::UTCTimeZone();
  bool colour = false;
  // The terminal shows UTF-8.
  bool unicode = false;
  int width = 80;
  int height = 24;
};

// "850 B", "1.2 MB" (powers of 1000).
std::string BytesText(int64_t bytes);
// "950", "12.3k", "4.56M".
std::string CountText(double count);
// "0.4s", "12s", "3m05s", "2h07m", "4d03h"; never negative.
std::string DurationText(absl::Duration duration);
// "2026-11-21 02:16:34" in the view's zone; "-" for 0.
std::string TimeText(int64_t unix_ms, const View& view);
// Four decimals, without trailing noise: "2.1345"; "-" before the first step.
std::string LossText(double loss);

// "RUNNING", "EXCHANGE": the enum's value without its prefix.
std::string StateText(v1::JobState state);
std::string PhaseText(v1::Phase phase);

// COMPLETED, FAILED or CANCELLED.
bool IsFinal(v1::JobState state);

// Without control characters, so that text from elsewhere cannot steer the terminal.
std::string Printable(absl::string_view text);

enum class Colour { kNone, kBold, kDim, kGreen, kYellow, kRed, kCyan };
// `text` as it is unless the view has colours.
std::string Paint(absl::string_view text, Colour colour, const View& view);
Colour ColourOf(v1::JobState state);

}  // namespace espalier::ctl
