// Patterns of names in which * stands for any characters, none included. Used by worker/state for
// train.freeze. Pure; any thread.
#pragma once

#include "absl/strings/string_view.h"

namespace espalier {

// Whether the whole of `name` is of the form of `pattern`. Takes no more than the product of both
// lengths.
inline bool MatchesGlob(absl::string_view pattern, absl::string_view name) {
  size_t p = 0, n = 0, star = absl::string_view::npos, resumed = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resumed = n;
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      ++p;
      ++n;
    } else if (star != absl::string_view::npos) {  // the star takes one more
      p = star + 1;
      n = ++resumed;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

}  // namespace espalier
