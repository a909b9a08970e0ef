// What jobs, nodes and profiles may be called: names become folder names, labels and words of
// command lines. Used inside common/config. Pure: any thread.
#pragma once

#include "absl/strings/ascii.h"
#include "absl/strings/string_view.h"

namespace espalier {

inline constexpr char kNameRule[] =
    "1 to 64 letters, digits, '-', '_' and '.', the first a letter or digit";

inline bool IsName(absl::string_view name) {
  if (name.empty() || name.size() > 64 || !absl::ascii_isalnum(name[0])) return false;
  for (const char c : name) {
    if (!absl::ascii_isalnum(c) && c != '-' && c != '_' && c != '.') return false;
  }
  return true;
}

}  // namespace espalier
