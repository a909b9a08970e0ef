#include "worker/memory/mps_watermarks.h"

#include <algorithm>
#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"

namespace espalier {

MpsWatermarks MpsWatermarksFor(int64_t recommended_bytes, int64_t physical_bytes,
                               int64_t wanted_bytes, int sharers) {
  const double most = recommended_bytes > 0 ? static_cast<double>(recommended_bytes)
                                            : 0.75 * static_cast<double>(physical_bytes);
  if (most <= 0) return {};
  double high = 1.0 / std::max(1, sharers);
  if (wanted_bytes > 0) high = std::min(high, static_cast<double>(wanted_bytes) / most);
  return {.high = high, .low = 0.9 * high};
}

void SetMpsWatermarks(const MpsWatermarks& watermarks) {
  const char* high = "PYTORCH_MPS_HIGH_WATERMARK_RATIO";
  const char* low = "PYTORCH_MPS_LOW_WATERMARK_RATIO";
  if (std::getenv(high) != nullptr || std::getenv(low) != nullptr) return;
  setenv(high, absl::StrCat(watermarks.high).c_str(), 1);
  setenv(low, absl::StrCat(watermarks.low).c_str(), 1);
}

}  // namespace espalier
