// BadRows: what becomes of rows that cannot be used: the preparation ends, or they are told,
// counted and left out. Used by prepare_options.h, preparer.h, document_reader.cc, fine_tune_row.cc
// and row_renderer.cc. One thread.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "worker/data/token_manifest.h"

namespace espalier {

enum class BadRowPolicy {
  kError,  // the first one ends the preparation
  kSkip,
};

// What is wrong with a row is told by the code of its status: INVALID_ARGUMENT, malformed; these
// two; any other is not of the row.
absl::Status EmptyRow(absl::string_view why);
absl::Status TooLongRow(absl::string_view why);
bool IsBadRow(const absl::Status& status);

class BadRows {
 public:
  struct Options {
    BadRowPolicy bad = BadRowPolicy::kError;    // malformed and empty ones
    BadRowPolicy long_ = BadRowPolicy::kError;  // too long ones
    // Gets the message of each row that is left out; may be empty.
    std::function<void(const std::string&)> tell;
  };
  explicit BadRows(Options options) : options_(std::move(options)) {}

  // Counts the row, or gives its error back, as INVALID_ARGUMENT, with what else could be done.
  // What is not of a row is given back as it is.
  absl::Status Take(const absl::Status& row, RowCounts& counts) const;

 private:
  Options options_;
};

}  // namespace espalier
