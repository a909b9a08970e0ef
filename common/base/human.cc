#include "common/base/human.h"

#include <array>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace espalier {
namespace {

// Two parts: "3 min 05 s".
std::string TwoUnits(int64_t count, int64_t per_large, const char* large, const char* small) {
  return absl::StrFormat("%d %s %02d %s", count / per_large, large, count % per_large, small);
}

std::string ThreeDigits(double number) {
  const double size = std::abs(number);
  return absl::StrFormat("%.*f", size < 9.995 ? 2 : size < 99.95 ? 1 : 0, number);
}

}  // namespace

std::string HumanBytes(int64_t bytes) {
  constexpr std::array kUnits{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (std::abs(static_cast<double>(bytes)) < 1024) return absl::StrCat(bytes, " B");
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  for (; std::abs(value) >= 1023.95 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  return absl::StrFormat("%.1f %s", value, kUnits[unit]);
}

std::string HumanDuration(absl::Duration duration) {
  if (duration == absl::InfiniteDuration()) return "forever";
  if (duration < absl::ZeroDuration()) return absl::StrCat("-", HumanDuration(-duration));
  const double seconds = absl::ToDoubleSeconds(duration);
  if (seconds == 0) return "0 s";
  if (seconds < 0.9995e-3) return absl::StrFormat("%.0f us", seconds * 1e6);
  if (seconds < 0.9995) return ThreeDigits(seconds * 1e3) + " ms";
  if (seconds < 59.95) return absl::StrFormat("%.1f s", seconds);
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  if (whole < 3600) return TwoUnits(whole, 60, "min", "s");
  if (whole < 86400) return TwoUnits(whole / 60, 60, "h", "min");
  return TwoUnits(whole / 3600, 24, "d", "h");
}

std::string HumanNumber(double number) {
  constexpr std::array kUnits{"k", "M", "G", "T", "P"};
  if (!std::isfinite(number)) return absl::StrCat(number);
  if (std::abs(number) < 999.5) {
    return number == std::trunc(number) ? absl::StrCat(static_cast<int64_t>(number))
                                        : ThreeDigits(number);
  }
  double value = number / 1000;
  size_t unit = 0;
  for (; std::abs(value) >= 999.5 && unit + 1 < kUnits.size(); ++unit) value /= 1000;
  return absl::StrCat(ThreeDigits(value), " ", kUnits[unit]);
}

}  // namespace espalier
