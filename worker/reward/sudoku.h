// Sudoku to learn from: puzzles that have one solution each, as a prompt and a completion of one
// character for each place, row by row; 0 is a place that is to be filled:
//   {"prompt": "2003004000211000", "completion": "2143314243211234"}
// Used by worker/verbs.h and worker/make_data_verb.cc. Pure but for what is written: any thread.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/base/random.h"
#include "worker/reward/data_writer.h"

namespace espalier {

struct SudokuOptions {
  int size = 9;   // digits, and places of a row: 4 (boxes of 2 x 2), 6 (2 x 3), 8 (2 x 4) or 9
  int clues = 0;  // places that are given; more where none of them can be spared. 0: three in eight
};
// INVALID_ARGUMENT: an option is out of its range.
absl::Status CheckSudoku(const SudokuOptions& options);

struct SudokuPuzzle {
  std::string puzzle, solution;
};
// `options` are sound.
SudokuPuzzle DrawSudoku(const SudokuOptions& options, SplitMix64& random);

// Ways to fill a puzzle of `size`, but no more than `most` are looked for. 0 also for one whose
// clues contradict each other.
int CountSudokuSolutions(absl::string_view puzzle, int size, int most);

// No puzzle twice, and no solution of validation in training, nor one whose digits have only been
// renamed: a grid is of one split or the other. INVALID_ARGUMENT: there are not so many.
absl::Status MakeSudokuData(const SudokuOptions& options, const DataAmount& amount,
                            DataWriter& writer);

}  // namespace espalier
