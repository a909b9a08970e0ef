#include "worker/reward/sudoku.h"

#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace espalier {
namespace {

// Drawing gives nothing that is wanted so often in a row when there is no more of it.
constexpr int kRepeatsMax = 2000;

int BoxRows(int size) { return size == 9 ? 3 : 2; }

// What stands where, and what each row, column and box has: digit d as bit d.
class Board {
 public:
  explicit Board(int size)
      : size_(size),
        places_(static_cast<size_t>(size * size)),
        rows_(static_cast<size_t>(size)),
        columns_(rows_),
        boxes_(rows_) {}

  int places() const { return size_ * size_; }
  int at(int place) const { return places_[static_cast<size_t>(place)]; }
  // Bits of the digits that may stand there.
  unsigned Allowed(int place) const {
    const Lines lines = LinesOf(place);
    return ((2u << size_) - 2) & ~(rows_[lines.row] | columns_[lines.column] | boxes_[lines.box]);
  }
  // A digit that is allowed, or 0 for none.
  void Set(int place, int digit) {
    const Lines lines = LinesOf(place);
    const unsigned change = (1u << at(place) | 1u << digit) & ~1u;
    rows_[lines.row] ^= change;
    columns_[lines.column] ^= change;
    boxes_[lines.box] ^= change;
    places_[static_cast<size_t>(place)] = digit;
  }
  // The empty place for which the fewest digits are left; -1: all are filled.
  int Tightest() const {
    int tightest = -1, fewest = size_ + 1;
    for (int place = 0; place < places(); ++place) {
      if (at(place) != 0) continue;
      const int left = __builtin_popcount(Allowed(place));
      if (left < fewest) tightest = place, fewest = left;
    }
    return tightest;
  }
  int size() const { return size_; }
  std::string Text() const {
    std::string text;
    for (const int digit : places_) text += static_cast<char>('0' + digit);
    return text;
  }

 private:
  struct Lines {
    size_t row, column, box;
  };
  Lines LinesOf(int place) const {
    const int row = place / size_, column = place % size_;
    const int across = BoxRows(size_);  // as many boxes lie side by side
    const int box = row / across * across + column / (size_ / across);
    return {static_cast<size_t>(row), static_cast<size_t>(column), static_cast<size_t>(box)};
  }

  int size_;
  std::vector<int> places_;
  std::vector<unsigned> rows_, columns_, boxes_;
};

void Shuffle(std::vector<int>& numbers, SplitMix64& random) {
  for (size_t i = numbers.size(); i > 1; --i) std::swap(numbers[i - 1], numbers[random.Below(i)]);
}

// Ways to fill the board, of which no more than `most` are looked for; it keeps the last of those.
// The digits of a place are tried as they come, or at random.
int Fill(Board& board, int most, SplitMix64* random) {
  const int place = board.Tightest();
  if (place < 0) return 1;
  std::vector<int> digits;
  for (int digit = 1; digit <= board.size(); ++digit) {
    if ((board.Allowed(place) >> digit & 1) != 0) digits.push_back(digit);
  }
  if (random != nullptr) Shuffle(digits, *random);
  int found = 0;
  for (const int digit : digits) {
    board.Set(place, digit);
    found += Fill(board, most - found, random);
    if (found >= most) return found;
    board.Set(place, 0);
  }
  return found;
}

// The same for grids that differ in the names of their digits alone.
std::string Renamed(const std::string& grid) {
  std::map<char, char> names;
  std::string text;
  for (const char digit : grid) {
    const auto next = static_cast<char>('1' + static_cast<char>(names.size()));
    text += names.emplace(digit, next).first->second;
  }
  return text;
}

// Grids of the splits, held out evenly as they are met.
class GridSplits {
 public:
  explicit GridSplits(double held_out) : share_(held_out) {}
  DataSplit Of(const std::string& solution) {
    const auto [found, is_new] = splits_.emplace(Renamed(solution), DataSplit::kTrain);
    const double due = std::ceil(share_ * static_cast<double>(splits_.size()));
    if (is_new && static_cast<double>(held_out_) < due) {
      found->second = DataSplit::kValidation;
      ++held_out_;
    }
    return found->second;
  }

 private:
  const double share_;
  int64_t held_out_ = 0;
  std::map<std::string, DataSplit> splits_;
};

int FewestClues(int size) { return size == 4 ? 4 : size == 6 ? 8 : size == 8 ? 14 : 17; }

}  // namespace

absl::Status CheckSudoku(const SudokuOptions& options) {
  const int size = options.size, places = size * size;
  if (size != 4 && size != 6 && size != 8 && size != 9) {
    return absl::InvalidArgumentError(
        absl::StrCat("--size is ", size, "; allowed are 4, 6, 8 and 9 digits"));
  }
  const bool sound = options.clues >= FewestClues(size) && options.clues < places;
  if (options.clues == 0 || sound) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--clues is ", options.clues, "; a puzzle of ",
                                                 places, " places has ", FewestClues(size), " to ",
                                                 places - 1, ", or 0 for three in eight"));
}

SudokuPuzzle DrawSudoku(const SudokuOptions& options, SplitMix64& random) {
  Board board(options.size);
  Fill(board, 1, &random);
  SudokuPuzzle drawn{.puzzle = "", .solution = board.Text()};
  const int clues = options.clues > 0 ? options.clues : (3 * board.places() + 7) / 8;
  std::vector<int> order(static_cast<size_t>(board.places()));
  std::iota(order.begin(), order.end(), 0);
  Shuffle(order, random);
  int given = board.places();
  for (const int place : order) {
    if (given == clues) break;
    const int digit = board.at(place);
    board.Set(place, 0);
    Board trial = board;
    const bool needed = Fill(trial, 2, nullptr) > 1;
    needed ? board.Set(place, digit) : static_cast<void>(--given);
  }
  drawn.puzzle = board.Text();
  return drawn;
}

int CountSudokuSolutions(absl::string_view puzzle, int size, int most) {
  Board board(size);
  if (puzzle.size() != static_cast<size_t>(board.places())) return 0;
  for (int place = 0; place < board.places(); ++place) {
    const int digit = puzzle[static_cast<size_t>(place)] - '0';
    if (digit == 0) continue;
    if (digit < 0 || digit > size || (board.Allowed(place) >> digit & 1) == 0) return 0;
    board.Set(place, digit);
  }
  return Fill(board, most, nullptr);
}

absl::Status MakeSudokuData(const SudokuOptions& options, const DataAmount& amount,
                            DataWriter& writer) {
  RETURN_IF_ERROR(CheckAmount(amount));
  const int64_t wanted = amount.train + amount.validation;
  GridSplits splits(static_cast<double>(amount.validation) / static_cast<double>(wanted));
  SplitMix64 random(amount.seed);
  std::set<std::string> made;
  std::map<DataSplit, int64_t> left = {{DataSplit::kTrain, amount.train},
                                       {DataSplit::kValidation, amount.validation}};
  for (int repeats = 0; static_cast<int64_t>(made.size()) < wanted;) {
    const SudokuPuzzle drawn = DrawSudoku(options, random);
    const DataSplit split = splits.Of(drawn.solution);
    if (left[split] == 0 || !made.insert(drawn.puzzle).second) {
      if (++repeats < kRepeatsMax) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "asked for ", amount.train, " + ", amount.validation, " different puzzles, and after ",
          made.size(), " of them ", kRepeatsMax,
          " in a row were none that is new; ask for fewer, for more digits (--size), or for other "
          "--clues"));
    }
    repeats = 0;
    --left[split];
    RETURN_IF_ERROR(
        writer.AddExample(split, {.turns = {}, .opening = drawn.puzzle}, drawn.solution));
  }
  return absl::OkStatus();
}

}  // namespace espalier
