// Packing: things of unequal length in as few rows of one length as is easily done. Used by
// coordinator/ctl/data_check.cc, which counts the rows of a job's data, and by
// worker/data/packed_table.cc, which fills them. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace espalier {

struct PackedRows {
  std::vector<int64_t> items;  // numbers of the items, row by row
  std::vector<int64_t> ends;   // of each row: behind its last item in `items`

  int64_t rows() const { return static_cast<int64_t>(ends.size()); }
  absl::Span<const int64_t> Row(int64_t row) const {
    const auto at = static_cast<size_t>(row);
    const int64_t begin = row == 0 ? 0 : ends[at - 1];
    return absl::MakeConstSpan(items).subspan(static_cast<size_t>(begin),
                                              static_cast<size_t>(ends[at] - begin));
  }
};

// Every item in one row, none of which is longer than `room`: the longest first, of equal ones the
// one that comes first, each into the fullest row that has room for it (best fit decreasing;
// Johnson et al. 1974: no more than 11/9 of the fewest rows that would do, and four). How many rows
// there are depends on the lengths alone, not on their order. Lengths are from 1 to `room`.
PackedRows PackLongestFirst(absl::Span<const int64_t> lengths, int64_t room);

}  // namespace espalier
