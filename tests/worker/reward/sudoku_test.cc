#include "worker/reward/sudoku.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "tests/worker/reward/made_data.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

// Plainly: each row, column and box has every digit.
bool IsGrid(const std::string& text, int size) {
  const int box_rows = size == 9 ? 3 : 2, box_columns = size / box_rows;
  for (int line = 0; line < size; ++line) {
    std::set<char> row, column, box;
    for (int i = 0; i < size; ++i) {
      row.insert(text[line * size + i]);
      column.insert(text[i * size + line]);
      const int top = line / box_rows * box_rows, left = line % box_rows * box_columns;
      box.insert(text[(top + i / box_columns) * size + left + i % box_columns]);
    }
    for (const std::set<char>& part : {row, column, box}) {
      if (static_cast<int>(part.size()) != size || *part.begin() != '1') return false;
    }
  }
  return true;
}

std::string Renamed(const std::string& grid) {
  std::map<char, char> names;
  std::string text;
  for (const char digit : grid) {
    text += names.emplace(digit, static_cast<char>('a' + names.size())).first->second;
  }
  return text;
}

TEST(Sudoku, PuzzlesHaveOneSolutionWhichTheyAreGivenWith) {
  SplitMix64 random(1);
  for (const int size : {4, 6, 8, 9}) {
    for (int i = 0; i < 20; ++i) {
      const SudokuPuzzle drawn = DrawSudoku({.size = size}, random);
      ASSERT_EQ(drawn.solution.size(), static_cast<size_t>(size * size));
      EXPECT_TRUE(IsGrid(drawn.solution, size)) << drawn.solution;
      EXPECT_EQ(CountSudokuSolutions(drawn.puzzle, size, 5), 1) << drawn.puzzle;
      int given = 0;
      for (size_t place = 0; place < drawn.puzzle.size(); ++place) {
        if (drawn.puzzle[place] == '0') continue;
        ++given;
        EXPECT_EQ(drawn.puzzle[place], drawn.solution[place]);
      }
      EXPECT_GE(given, (3 * size * size + 7) / 8);
      EXPECT_LT(given, size * size / 2 + 2);
    }
  }
}

// 288 grids of 4 x 4; the puzzle of 9 x 9 is the one of Wikipedia's article.
TEST(Sudoku, SolutionsAreCounted) {
  EXPECT_EQ(CountSudokuSolutions(std::string(16, '0'), 4, 1000), 288);
  EXPECT_EQ(CountSudokuSolutions(std::string(16, '0'), 4, 7), 7);
  const std::string known =
      "530070000600195000098000060800060003400803001700020006060000280000419005000080079";
  EXPECT_EQ(CountSudokuSolutions(known, 9, 10), 1);
  const std::string half = std::string(45, '0') + known.substr(45);
  EXPECT_EQ(CountSudokuSolutions(half, 9, 10), 10);
  EXPECT_EQ(CountSudokuSolutions("1100" + std::string(12, '0'), 4, 1), 0) << "two in a row";
  EXPECT_EQ(CountSudokuSolutions("12", 4, 1), 0);
}

struct MadeSplits {
  std::vector<JsonRow> train, validation;
};

MadeSplits Make(const TestFolder& folder, const SudokuOptions& options, const DataAmount& amount) {
  const absl::Status made = MakeData(
      folder, "made", [&](DataWriter& writer) { return MakeSudokuData(options, amount, writer); });
  EXPECT_TRUE(made.ok()) << made;
  return {RowsOf(folder / "made/train.jsonl"), RowsOf(folder / "made/validation.jsonl")};
}

TEST(Sudoku, NoSolutionOfValidationIsInTrainingUnderWhateverNames) {
  for (const SudokuOptions& options : {SudokuOptions{.size = 4, .clues = 7}, {.size = 6}}) {
    const TestFolder folder;
    const MadeSplits made = Make(folder, options, {.train = 400, .validation = 60, .seed = 3});
    EXPECT_EQ(made.train.size(), 400u);
    EXPECT_EQ(made.validation.size(), 60u);
    std::set<std::string> puzzles, grids;
    for (const JsonRow& row : made.train) {
      puzzles.insert(row["prompt"]);
      grids.insert(Renamed(row["completion"]));
    }
    for (const JsonRow& row : made.validation) {
      puzzles.insert(row["prompt"]);
      EXPECT_EQ(grids.count(Renamed(row["completion"])), 0u) << row;
    }
    EXPECT_EQ(puzzles.size(), 460u) << "one twice";
  }
}

TEST(Sudoku, TheSameSeedMakesTheSameFilesAndThereAreNoPrompts) {
  std::vector<std::string> texts;
  for (const uint64_t seed : {5, 5, 6}) {
    const TestFolder folder;
    Make(folder, {.size = 4}, {.train = 20, .validation = 4, .seed = seed});
    EXPECT_EQ(Names(folder / "made").size(), 2u) << "nothing judges them";
    texts.push_back(AllText(folder / "made"));
  }
  EXPECT_EQ(texts[0], texts[1]);
  EXPECT_NE(texts[0], texts[2]);
}

TEST(Sudoku, WhatThereIsNotIsRefused) {
  for (const SudokuOptions& options :
       {SudokuOptions{.size = 5}, {.size = 4, .clues = 3}, {.size = 9, .clues = 81}}) {
    EXPECT_EQ(CheckSudoku(options).code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_TRUE(CheckSudoku({.size = 9, .clues = 17}).ok());
  const TestFolder folder;
  const absl::Status many = MakeData(folder, "many", [](DataWriter& writer) {
    return MakeSudokuData({.size = 4, .clues = 15}, {.train = 100000}, writer);
  });
  EXPECT_EQ(many.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(many.message()), HasSubstr("--size"));
}

}  // namespace
}  // namespace espalier
