// RowSource: the rows of a file as JSON objects, one after the other, with errors that name file
// and row. Implementation: json_lines.h. Used by json_lines.h and preparer.h. One thread.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace espalier {

class RowSource {
 public:
  virtual ~RowSource() = default;
  // Sets `row` to the next one; false at the end of the file. Behind an error that is of a row
  // (bad_rows.h), the next call goes on.
  virtual absl::StatusOr<bool> Next(nlohmann::ordered_json& row) = 0;
  // The status, with file and row before its message.
  virtual absl::Status Error(const absl::Status& status) const = 0;
  // About how many bytes of the file lie before the row.
  virtual int64_t position() const = 0;
};

}  // namespace espalier
