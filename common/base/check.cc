#include "common/base/check.h"

#include <cstdio>
#include <cstdlib>

namespace espalier {

void CheckFailed(absl::string_view file, int line, absl::string_view what) {
  std::fprintf(stderr, "%.*s:%d: broken invariant: %.*s\n", static_cast<int>(file.size()),
               file.data(), line, static_cast<int>(what.size()), what.data());
  std::fflush(stderr);
  std::abort();
}

}  // namespace espalier
