#include "worker/data/message_tree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/data/fine_tune_row.h"

namespace espalier {
namespace {

using Json = nlohmann::ordered_json;
using testing::HasSubstr;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

class ListedRows final : public RowSource {
 public:
  explicit ListedRows(std::vector<std::string> lines) : lines_(std::move(lines)) {}
  absl::StatusOr<bool> Next(Json& row) override {
    if (next_ == lines_.size()) return false;
    const std::string& line = lines_[next_++];
    if (line == "bad") return absl::InvalidArgumentError("no object");
    row = Json::parse(line);
    return true;
  }
  absl::Status Error(const absl::Status& status) const override { return status; }
  int64_t position() const override { return static_cast<int64_t>(next_); }

 private:
  const std::vector<std::string> lines_;
  size_t next_ = 0;
};

// What is said in the best conversation, turn by turn: "user: a | assistant: b".
std::string Said(const Json& row) {
  const auto parsed = ParseRow(row, RowFormat::kOpenAssistant, {});
  if (!parsed.ok()) return Message(parsed.status());
  std::string said;
  for (const Json& turn : std::get<ChatRow>(*parsed).variables["messages"]) {
    absl::StrAppend(&said, said.empty() ? "" : " | ", turn["role"].get<std::string>(), ": ",
                    turn["content"].get<std::string>());
  }
  return said;
}

// Of all rows, errors too.
std::vector<std::string> SaidOf(std::vector<std::string> lines) {
  const auto rows = JoinMessages(std::make_unique<ListedRows>(std::move(lines)));
  std::vector<std::string> said;
  for (;;) {
    Json row;
    const absl::StatusOr<bool> found = rows->Next(row);
    if (found.ok() && !*found) return said;
    said.push_back(found.ok() ? Said(row) : Message(found.status()));
  }
}

constexpr char kTree[] = R"({"message_tree_id": "t", "tree_state": "ready_for_export", "prompt":
  {"message_id": "t", "role": "prompter", "text": "Q", "replies": [
    {"role": "assistant", "text": "third", "rank": 2, "replies": []},
    {"role": "assistant", "text": "best", "rank": 0, "replies": [
      {"role": "prompter", "text": "unanswered", "replies": []},
      {"role": "prompter", "text": "more", "replies": [
        {"role": "assistant", "text": "unranked", "rank": null, "replies": []},
        {"role": "assistant", "text": "ranked", "rank": 1, "replies": [
          {"role": "prompter", "text": "thanks", "replies": []}]},
        {"role": "assistant", "text": "gone", "rank": 0, "deleted": true, "replies": []}]}]},
    {"role": "assistant", "text": "second", "rank": 1, "replies": []}]}})";

TEST(MessageTree, TheBestAnswersMakeTheConversationAsFarAsTheLastOfThem) {
  EXPECT_EQ(RecogniseRow(Json::parse(kTree), {}).value(), RowFormat::kOpenAssistant);
  EXPECT_EQ(Said(Json::parse(kTree)), "user: Q | assistant: best | user: more | assistant: ranked");
  EXPECT_THAT(SaidOf({kTree, kTree}), testing::SizeIs(2)) << "whole trees are rows as they are";
}

std::string Row(const std::string& id, const std::string& parent, const std::string& role,
                const std::string& text, const std::string& more = "") {
  const std::string reply = parent.empty() ? "null" : absl::StrCat("\"", parent, "\"");
  return absl::StrCat(R"({"message_id": ")", id, R"(", "parent_id": )", reply, R"(, "role": ")",
                      role, R"(", "text": ")", text, "\"", more, "}");
}

TEST(MessageTree, MessagesThatAreRowsAreJoinedByTheirTree) {
  const std::string first = R"(, "message_tree_id": "a", "rank": null)";
  const std::string second = R"(, "message_tree_id": "e")";
  const std::vector<std::string> rows = {
      Row("b", "a", "assistant", "worse", R"(, "message_tree_id": "a", "rank": 1.0)"),
      Row("a", "", "prompter", "Q", first),
      Row("c", "a", "assistant", "better", R"(, "message_tree_id": "a", "rank": 0.0)"),
      Row("d", "elsewhere", "assistant", "lost", first),
      Row("e", "", "prompter", "Q2", second),
      Row("f", "e", "assistant", "A2", second)};
  EXPECT_EQ(RecogniseRow(Json::parse(rows[0]), {}).value(), RowFormat::kOpenAssistant);
  EXPECT_THAT(SaidOf(rows),
              testing::ElementsAre("user: Q | assistant: better", "user: Q2 | assistant: A2"));
}

TEST(MessageTree, WithoutANameATreeBeginsWithItsFirstMessage) {
  EXPECT_THAT(SaidOf({Row("a", "", "prompter", "Q"), Row("b", "a", "assistant", "A"), "bad",
                      Row("c", "", "prompter", "Q2"), Row("d", "c", "assistant", "A2"), kTree}),
              testing::ElementsAre("no object", "user: Q | assistant: A",
                                   "user: Q2 | assistant: A2", HasSubstr("assistant: ranked")));
}

TEST(MessageTree, WhatHasNoAnswerOrIsNoTreeIsToldAsARow) {
  EXPECT_THAT(SaidOf({Row("a", "", "prompter", "Q")}),
              testing::ElementsAre(HasSubstr("no answer of the assistant")));
  EXPECT_THAT(SaidOf({Row("a", "b", "assistant", "A")}),
              testing::ElementsAre(HasSubstr("'parent_id'")));
  EXPECT_THAT(SaidOf({Row("a", "", "prompter", "Q"), Row("a", "a", "assistant", "A")}),
              testing::ElementsAre(HasSubstr("two messages")));
  EXPECT_THAT(SaidOf({R"({"text": "a"})"}), testing::ElementsAre(HasSubstr("no tree of messages")));
  EXPECT_THAT(SaidOf({Row("a", "", "prompter", "Q"), Row("b", "a", "somebody", "A"),
                      Row("c", "b", "assistant", "A")}),
              testing::ElementsAre(HasSubstr("is from 'somebody'")));
}

}  // namespace
}  // namespace espalier
