#include "common/base/nearest.h"

#include <algorithm>
#include <array>

#include "absl/strings/ascii.h"

namespace espalier {
namespace {

constexpr size_t kWordMax = 64;

bool Same(char a, char b) { return absl::ascii_tolower(a) == absl::ascii_tolower(b); }

}  // namespace

// Optimal string alignment, keeping the last three rows of the table.
int EditDistance(absl::string_view a, absl::string_view b) {
  a = a.substr(0, kWordMax);
  b = b.substr(0, kWordMax);
  std::array<std::array<int, kWordMax + 1>, 3> rows{};
  for (size_t j = 0; j <= b.size(); ++j) rows[0][j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    auto& row = rows[i % 3];
    const auto& above = rows[(i + 2) % 3];
    const auto& above_that = rows[(i + 1) % 3];
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const int substituted = above[j - 1] + (Same(a[i - 1], b[j - 1]) ? 0 : 1);
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, substituted});
      if (i > 1 && j > 1 && Same(a[i - 1], b[j - 2]) && Same(a[i - 2], b[j - 1])) {
        row[j] = std::min(row[j], above_that[j - 2] + 1);
      }
    }
  }
  return rows[a.size() % 3][b.size()];
}

std::optional<std::string> Nearest(absl::string_view word,
                                   const std::vector<std::string>& candidates) {
  std::optional<std::string> best;
  int best_distance = 0;
  for (const std::string& candidate : candidates) {
    const int distance = EditDistance(word, candidate);
    const int allowed = std::max<int>(1, static_cast<int>(candidate.size()) / 3);
    if (distance > allowed || (best && distance >= best_distance)) continue;
    best = candidate;
    best_distance = distance;
  }
  return best;
}

}  // namespace espalier
