// ESPALIER_CHECK: stops the program when an invariant of the code itself is broken. Expected
// failures (input, network, disk) return absl::Status instead. Used by common/, coordinator/ and
// worker/. Any thread.
#pragma once

#include <cstdio>
#include <cstdlib>

#include "absl/strings/string_view.h"

namespace espalier {

// Prints the place and the message and aborts, so that a core and a stack are left.
[[noreturn]] inline void CheckFailed(absl::string_view file, int line, absl::string_view what) {
  std::fprintf(stderr, "%.*s:%d: broken invariant: %.*s\n", static_cast<int>(file.size()),
               file.data(), line, static_cast<int>(what.size()), what.data());
  std::fflush(stderr);
  std::abort();
}

}  // namespace espalier

#define ESPALIER_CHECK(condition, message)                                                  \
  do {                                                                                      \
    if (!(condition)) ::espalier::CheckFailed(__FILE__, __LINE__, #condition ": " message); \
  } while (false)
