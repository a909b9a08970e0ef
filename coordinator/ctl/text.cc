#include "coordinator/ctl/text.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"

namespace espalier::ctl {
namespace {

// Three significant digits.
std::string Scaled(double value, absl::string_view unit) {
  const int decimals = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  return absl::StrFormat("%.*f%s", decimals, value, unit);
}

}  // namespace

std::string BytesText(int64_t bytes) {
  if (bytes < 1000) return absl::StrCat(bytes, " B");
  double value = static_cast<double>(bytes);
  static constexpr std::array<absl::string_view, 5> kUnits = {" kB", " MB", " GB", " TB", " PB"};
  size_t unit = 0;
  for (value /= 1000; value >= 999.5 && unit + 1 < kUnits.size(); ++unit) value /= 1000;
  return Scaled(value, kUnits[unit]);
}

std::string CountText(double count) {
  if (!std::isfinite(count)) return "-";
  if (count < 999.5) return absl::StrFormat("%.0f", count);
  static constexpr std::array<absl::string_view, 4> kUnits = {"k", "M", "G", "T"};
  size_t unit = 0;
  for (count /= 1000; count >= 999.5 && unit + 1 < kUnits.size(); ++unit) count /= 1000;
  return Scaled(count, kUnits[unit]);
}

std::string DurationText(absl::Duration duration) {
  const double seconds = std::max(0.0, absl::ToDoubleSeconds(duration));
  if (seconds < 9.95) return absl::StrFormat("%.1fs", seconds);
  const int64_t whole = std::llround(std::min(seconds, 1e15));
  if (whole < 60) return absl::StrFormat("%ds", whole);
  if (whole < 3600) return absl::StrFormat("%dm%02ds", whole / 60, whole % 60);
  if (whole < 86400) return absl::StrFormat("%dh%02dm", whole / 3600, whole / 60 % 60);
  return absl::StrFormat("%dd%02dh", whole / 86400, whole / 3600 % 24);
}

std::string TimeText(int64_t unix_ms, const View& view) {
  if (unix_ms == 0) return "-";
  return absl::FormatTime("%Y-%m-%d %H:%M:%S", absl::FromUnixMillis(unix_ms), view.zone);
}

std::string LossText(double loss) { return loss == 0 ? "-" : absl::StrFormat("%.4f", loss); }

std::string StateText(v1::JobState state) {
  return std::string(absl::StripPrefix(v1::JobState_Name(state), "JOB_STATE_"));
}

std::string PhaseText(v1::Phase phase) {
  if (phase == v1::PHASE_UNSPECIFIED) return "-";
  return std::string(absl::StripPrefix(v1::Phase_Name(phase), "PHASE_"));
}

bool IsFinal(v1::JobState state) {
  return state == v1::JOB_STATE_COMPLETED || state == v1::JOB_STATE_FAILED ||
         state == v1::JOB_STATE_CANCELLED;
}

std::string Printable(absl::string_view text) {
  std::string clean(text);
  for (char& c : clean) {
    if (absl::ascii_iscntrl(static_cast<unsigned char>(c))) c = ' ';
  }
  return clean;
}

std::string Paint(absl::string_view text, Colour colour, const View& view) {
  if (!view.colour || colour == Colour::kNone) return std::string(text);
  static constexpr std::array<absl::string_view, 7> kCodes = {"0",  "1",  "2", "32",
                                                              "33", "31", "36"};
  return absl::StrCat("\x1b[", kCodes[static_cast<size_t>(colour)], "m", text, "\x1b[0m");
}

Colour ColourOf(v1::JobState state) {
  switch (state) {
    case v1::JOB_STATE_RUNNING:
    case v1::JOB_STATE_COMPLETED:
      return Colour::kGreen;
    case v1::JOB_STATE_PAUSING:
    case v1::JOB_STATE_PAUSED_SOFT:
    case v1::JOB_STATE_PAUSED_HARD:
    case v1::JOB_STATE_RECOVERING:
    case v1::JOB_STATE_CANCELLING:
      return Colour::kYellow;
    case v1::JOB_STATE_FAILED:
    case v1::JOB_STATE_CANCELLED:
      return Colour::kRed;
    case v1::JOB_STATE_QUEUED:
    case v1::JOB_STATE_LAUNCHING:
    case v1::JOB_STATE_REGROUPING:
      return Colour::kCyan;
    default:
      return Colour::kNone;
  }
}

}  // namespace espalier::ctl
