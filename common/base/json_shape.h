// What JSON from outside may look like before anybody parses it: deep nesting uses the stack, and
// ordered objects take the square of their members. Used by worker/formats,
// worker/data/json_lines.cc, worker/reward and worker/serve/openai_request.cc. Pure: any thread.
#pragma once

#include <cstddef>
#include <limits>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace espalier {

// INVALID_ARGUMENT for a text that nests deeper than 64, or has an object of more than
// `most_members`, whatever else it is: to parse or to use such a thing may take any time. In linear
// time.
inline absl::Status CheckShape(absl::string_view json, int most_members = 4096) {
  constexpr size_t kMostDepth = 64;
  std::vector<int> members;  // colons of the objects and lists that are open
  bool text = false;
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (text) {
      if (c == '\\') ++i;
      if (c == '"') text = false;
    } else if (c == '"') {
      text = true;
    } else if (c == '{' || c == '[') {
      members.push_back(0);
      if (members.size() > kMostDepth) {
        return absl::InvalidArgumentError(absl::StrCat("it nests deeper than ", kMostDepth));
      }
    } else if ((c == '}' || c == ']') && !members.empty()) {
      members.pop_back();
    } else if (c == ':' && !members.empty() && ++members.back() > most_members) {
      return absl::InvalidArgumentError(
          absl::StrCat("it has an object of more than ", most_members, " members"));
    }
  }
  return absl::OkStatus();
}

// The same of nesting alone, for what is not parsed to ordered objects.
inline absl::Status CheckDepth(absl::string_view json) {
  return CheckShape(json, std::numeric_limits<int>::max());
}

}  // namespace espalier
