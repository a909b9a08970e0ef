#include "coordinator/ctl/table.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace espalier::ctl {
namespace {

// Characters of UTF-8 text: bytes that do not continue one.
size_t Width(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

}  // namespace

void Table::Add(std::vector<Cell> row) {
  ESPALIER_CHECK(row.size() == columns_.size(), "a row has one cell per column");
  for (Cell& cell : row) cell.text = Printable(cell.text);
  rows_.push_back(std::move(row));
}

std::string Table::Render(const View& view, int indent) const {
  std::vector<size_t> widths;
  for (size_t i = 0; i < columns_.size(); ++i) {
    size_t width = Width(columns_[i].title);
    for (const std::vector<Cell>& row : rows_) width = std::max(width, Width(row[i].text));
    widths.push_back(width);
  }
  std::string out;
  const auto append = [&](size_t i, const std::string& text, Colour colour) {
    const std::string padding(widths[i] - Width(text), ' ');
    const bool right = columns_[i].align == Align::kRight;
    const bool last = i + 1 == columns_.size();
    absl::StrAppend(&out, right ? padding : "", Paint(text, colour, view));
    absl::StrAppend(&out, right || last ? "" : padding, last ? "\n" : "  ");
  };
  out.append(static_cast<size_t>(indent), ' ');
  for (size_t i = 0; i < columns_.size(); ++i) append(i, columns_[i].title, Colour::kDim);
  for (const std::vector<Cell>& row : rows_) {
    out.append(static_cast<size_t>(indent), ' ');
    for (size_t i = 0; i < row.size(); ++i) append(i, row[i].text, row[i].colour);
  }
  return out;
}

}  // namespace espalier::ctl
