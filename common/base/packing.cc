#include "common/base/packing.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "common/base/check.h"

namespace espalier {
namespace {

std::vector<int64_t> LongestFirstOrder(absl::Span<const int64_t> lengths) {
  std::vector<int64_t> order(lengths.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return lengths[static_cast<size_t>(a)] > lengths[static_cast<size_t>(b)];
  });
  return order;
}

}  // namespace

PackedRows PackLongestFirst(absl::Span<const int64_t> lengths, int64_t room) {
  const std::vector<int64_t> order = LongestFirstOrder(lengths);
  std::map<int64_t, std::vector<int64_t>> rows_by_room;
  std::vector<int64_t> row_of(lengths.size());
  PackedRows packed;
  for (const int64_t item : order) {
    const int64_t length = lengths[static_cast<size_t>(item)];
    ESPALIER_CHECK(1 <= length && length <= room, "an item is longer than a row, or has no length");
    int64_t row = packed.rows(), left = room - length;
    if (const auto fullest = rows_by_room.lower_bound(length); fullest != rows_by_room.end()) {
      row = fullest->second.back();
      left = fullest->first - length;
      fullest->second.pop_back();
      if (fullest->second.empty()) rows_by_room.erase(fullest);
    } else {
      packed.ends.push_back(0);
    }
    if (left > 0) rows_by_room[left].push_back(row);
    row_of[static_cast<size_t>(item)] = row;
    ++packed.ends[static_cast<size_t>(row)];  // how many it holds, first
  }
  std::partial_sum(packed.ends.begin(), packed.ends.end(), packed.ends.begin());
  // Each row from its end, so the last item comes first.
  std::vector<int64_t> next = packed.ends;
  packed.items.resize(order.size());
  for (auto item = order.rbegin(); item != order.rend(); ++item) {
    const auto row = static_cast<size_t>(row_of[static_cast<size_t>(*item)]);
    packed.items[static_cast<size_t>(--next[row])] = *item;
  }
  return packed;
}

}  // namespace espalier
