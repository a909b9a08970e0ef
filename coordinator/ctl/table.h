// Table: columns that line up, for `-o table`. Used by the render functions. Not thread-safe.
#pragma once

#include <string>
#include <vector>

#include "coordinator/ctl/text.h"

namespace espalier::ctl {

struct Cell {
  Cell(std::string text, Colour colour = Colour::kNone)  // NOLINT: cells are written as text.
      : text(std::move(text)), colour(colour) {}
  std::string text;
  Colour colour;
};

class Table {
 public:
  enum class Align { kLeft, kRight };
  struct Column {
    std::string title;
    Align align = Align::kLeft;
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  // One cell per column. Control characters are replaced by spaces.
  void Add(std::vector<Cell> row);
  bool empty() const { return rows_.empty(); }

  // Title line and rows, each line starting with `indent` spaces and ending with a newline; the
  // last column is not padded.
  std::string Render(const View& view, int indent = 0) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<Cell>> rows_;
};

}  // namespace espalier::ctl
