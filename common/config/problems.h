// Problems: what is wrong with a configuration, gathered so that a person can mend all of it at
// once. Used inside common/config. Not thread-safe.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace espalier {

class Problems {
 public:
  // `where` may be empty.
  void Add(absl::string_view where, absl::string_view what);
  bool empty() const { return count_ == 0; }

  // OK, or INVALID_ARGUMENT with one problem a line, the first kShownMax of them.
  absl::Status ToStatus() const;

  static constexpr size_t kShownMax = 20;

 private:
  std::vector<std::string> lines_;
  size_t count_ = 0;
};

}  // namespace espalier
