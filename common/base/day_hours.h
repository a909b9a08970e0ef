// DayHours: a part of the day, "22:00-07:30", which may go past midnight. Used by
// common/config/cluster_rules.cc, which checks them, and by coordinator/planner/node_health.cc.
// Plain value.
#pragma once

#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace espalier {

struct DayHours {
  // Minutes since midnight, from 0 to 1439: the first of it, and the first after it.
  int begin = 0;
  int end = 0;

  bool Has(int minute) const {
    return begin < end ? minute >= begin && minute < end : minute >= begin || minute < end;
  }
};

// "07:30" -> 450.
inline std::optional<int> ParseMinuteOfDay(absl::string_view text) {
  if (text.size() != 5 || text[2] != ':') return std::nullopt;
  for (const size_t i : {0, 1, 3, 4}) {
    if (!absl::ascii_isdigit(static_cast<unsigned char>(text[i]))) return std::nullopt;
  }
  const int hour = 10 * (text[0] - '0') + (text[1] - '0');
  const int minute = 10 * (text[3] - '0') + (text[4] - '0');
  if (hour > 23 || minute > 59) return std::nullopt;
  return 60 * hour + minute;
}

// INVALID_ARGUMENT unless it is HH:MM-HH:MM, of two times that differ.
inline absl::StatusOr<DayHours> ParseDayHours(absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, '-');
  const std::optional<int> begin = ParseMinuteOfDay(parts.front());
  const std::optional<int> end = ParseMinuteOfDay(parts.back());
  if (parts.size() != 2 || !begin || !end || begin == end) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "' is no part of a day; allowed: HH:MM-HH:MM of two times that ",
                     "differ, for example 22:00-07:30"));
  }
  return DayHours{*begin, *end};
}

}  // namespace espalier
