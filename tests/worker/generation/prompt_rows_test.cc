#include "worker/generation/prompt_rows.h"

#include <gtest/gtest.h>

namespace espalier {
namespace {

PromptRows Holding(std::vector<std::vector<int32_t>> prompts, int64_t part) {
  PromptRows rows(static_cast<int64_t>(prompts.size()), part);
  for (size_t i = 0; i < prompts.size(); ++i) {
    rows.at(static_cast<int64_t>(i)) = {prompts[i], {1}, static_cast<int64_t>(i)};
  }
  return rows;
}

TEST(PromptRows, SharesWholePartsAndWholePrompts) {
  const PromptRows rows = Holding({{1, 2, 3, 4, 5}}, 2);
  const auto shared = [&](std::vector<int32_t> prompt) { return rows.Find(prompt, 0).positions; };
  EXPECT_EQ(shared({1, 2, 3, 4, 5}), 5);
  EXPECT_EQ(shared({1, 2, 3, 4, 5, 6}), 4);
  EXPECT_EQ(shared({1, 2, 3, 9}), 2);
  EXPECT_EQ(shared({1, 2, 3, 4}), 2);  // its last position gives the logits
  EXPECT_EQ(shared({9, 2, 3, 4}), 0);
  EXPECT_EQ(shared({1}), 0);
}

TEST(PromptRows, APromptWithoutItsLogitsIsNotWhole) {
  PromptRows rows = Holding({{1, 2, 3}}, 2);
  rows.at(0).logits.clear();
  EXPECT_FALSE(rows.Find(std::vector<int32_t>{1, 2, 3}, 0).whole);
  EXPECT_EQ(rows.Find(std::vector<int32_t>{1, 2, 3}, 0).positions, 2);
}

TEST(PromptRows, AnIdleRowIsContinuedWhereNothingIsLostByThat) {
  const PromptRows rows = Holding({{7}, {1, 2, 3, 4, 5}, {8}}, 2);
  const auto row_for = [&](std::vector<int32_t> prompt) {
    return rows.RowFor(rows.Find(prompt, 1), 1, -1);
  };
  EXPECT_EQ(row_for({1, 2, 3, 4, 5, 6}), 1);
  EXPECT_EQ(row_for({1, 2, 9}), 2);  // row 1 may be asked for again
  EXPECT_EQ(row_for({9}), 1);        // the oldest
}

TEST(PromptRows, TheOnlyRowIsTakenWhateverIsLost) {
  const PromptRows rows = Holding({{1, 2, 3, 4, 5}}, 2);
  EXPECT_EQ(rows.RowFor(rows.Find(std::vector<int32_t>{1, 2, 9}, 0), 0, -1), 0);
}

}  // namespace
}  // namespace espalier
