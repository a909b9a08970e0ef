#include "worker/data/bad_rows.h"

#include "absl/strings/str_cat.h"

namespace espalier {

absl::Status EmptyRow(absl::string_view why) { return absl::FailedPreconditionError(why); }
absl::Status TooLongRow(absl::string_view why) { return absl::OutOfRangeError(why); }

bool IsBadRow(const absl::Status& status) {
  return absl::IsInvalidArgument(status) || absl::IsFailedPrecondition(status) ||
         absl::IsOutOfRange(status);
}

absl::Status BadRows::Take(const absl::Status& row, RowCounts& counts) const {
  if (!IsBadRow(row)) return row;
  const bool long_row = absl::IsOutOfRange(row);
  if ((long_row ? options_.long_ : options_.bad) == BadRowPolicy::kError) {
    return absl::InvalidArgumentError(absl::StrCat(
        row.message(), long_row ? "; cut such rows with --long-rows cut, or leave them out, with "
                                  "their number told, with --long-rows skip"
                                : "; mend or remove the line, or leave such rows out, with their "
                                  "number told, with --bad-rows skip"));
  }
  int64_t& count = long_row                          ? counts.too_long
                   : absl::IsFailedPrecondition(row) ? counts.empty
                                                     : counts.malformed;
  ++count;
  if (options_.tell) options_.tell(std::string(row.message()));
  return absl::OkStatus();
}

}  // namespace espalier
