#include "worker/data/fine_tune_row.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/json_shape.h"
#include "worker/data/bad_rows.h"
#include "worker/data/json_lines.h"

namespace espalier {
namespace {

using Json = nlohmann::ordered_json;
using testing::HasSubstr;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

absl::StatusOr<FineTuneRow> Parse(RowFormat format, const std::string& json) {
  return ParseRow(Json::parse(json), format, {});
}

// The messages of a row as a template gets them.
std::string Messages(RowFormat format, const std::string& json) {
  const auto row = Parse(format, json);
  if (!row.ok()) return Message(row.status());
  return std::get<ChatRow>(*row).variables["messages"].dump();
}

struct Recognised {
  const char* name;
  const char* row;
  RowFormat format;
};

class RowsAreRecognised : public testing::TestWithParam<Recognised> {};

TEST_P(RowsAreRecognised, ByTheirColumns) {
  const auto format = RecogniseRow(Json::parse(GetParam().row), {});
  ASSERT_TRUE(format.ok()) << format.status();
  EXPECT_EQ(*format, GetParam().format);
}

INSTANTIATE_TEST_SUITE_P(
    FineTuneRow, RowsAreRecognised,
    testing::Values(
        Recognised{"Text", R"({"text": "a", "id": 3, "source": "x"})", RowFormat::kText},
        Recognised{"Pair", R"({"prompt": "a", "completion": "b"})", RowFormat::kPromptCompletion},
        Recognised{"Messages", R"({"messages": []})", RowFormat::kMessages},
        Recognised{"ShareGpt", R"({"id": "1", "conversations": []})", RowFormat::kShareGpt},
        Recognised{"Alpaca", R"({"instruction": "a", "input": "", "output": "b"})",
                   RowFormat::kAlpaca},
        // Alpaca's files carry the rendered text under another name, and a prompt without its
        // completion is no pair.
        Recognised{"OneOfAPair", R"({"prompt": "a", "messages": []})", RowFormat::kMessages}),
    [](const auto& info) { return info.param.name; });

TEST(FineTuneRow, ColumnsOfSeveralFormatsAreRefused) {
  const auto both = RecogniseRow(Json::parse(R"({"text": "a", "messages": []})"), {});
  EXPECT_EQ(both.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(both.status()), HasSubstr("(messages, text-rows)"));
  EXPECT_THAT(Message(both.status()), HasSubstr("--format"));
}

TEST(FineTuneRow, UnknownColumnsAreRefusedWithThoseThatAreKnown) {
  const auto none = RecogniseRow(Json::parse(R"({"question": "a", "answer": "b"})"), {});
  EXPECT_THAT(Message(none.status()), HasSubstr("'question', 'answer'"));
  EXPECT_THAT(Message(none.status()), HasSubstr("'instruction' with 'output'"));
}

TEST(FineTuneRow, ColumnsHaveTheNamesThatAreGiven) {
  const auto format = RecogniseRow(Json::parse(R"({"question": "a", "answer": "b"})"),
                                   {.prompt = "question", .completion = "answer"});
  ASSERT_TRUE(format.ok()) << format.status();
  EXPECT_EQ(*format, RowFormat::kPromptCompletion);
}

TEST(FineTuneRow, MessagesStayAsTheyAre) {
  const std::string messages =
      R"([{"role":"user","content":"a"},{"role":"assistant","tool_calls":[{"b":1,"a":2}]}])";
  EXPECT_EQ(Messages(RowFormat::kMessages, R"({"messages": )" + messages + "}"), messages);
}

TEST(FineTuneRow, ContentMayBeOfPartsThatAreTextsOrNullBesideCalls) {
  const std::string messages =
      R"([{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},)"
      R"({"role":"assistant","content":null,"tool_calls":[{"b":1}]}])";
  EXPECT_EQ(Messages(RowFormat::kMessages, R"({"messages": )" + messages + "}"), messages);
}

TEST(FineTuneRow, ToolsAreForTheTemplate) {
  const auto row = Parse(RowFormat::kMessages,
                         R"({"messages": [{"role": "user", "content": "a"}], "tools": [1]})");
  ASSERT_TRUE(row.ok()) << row.status();
  EXPECT_EQ(std::get<ChatRow>(*row).variables["tools"].dump(), "[1]");
}

TEST(FineTuneRow, TurnsOfShareGptBecomeMessages) {
  EXPECT_EQ(Messages(RowFormat::kShareGpt,
                     R"({"system": "s", "conversations": [{"from": "human", "value": "a"},
                        {"from": "gpt", "value": "b"}, {"role": "user", "content": "c"}]})"),
            R"([{"role":"system","content":"s"},{"role":"user","content":"a"},)"
            R"({"role":"assistant","content":"b"},{"role":"user","content":"c"}])");
}

struct BadRowCase {
  const char* name;
  RowFormat format;
  std::string row;
  absl::StatusCode code;
  const char* message;
};

class BadRowsOfFormats : public testing::TestWithParam<BadRowCase> {};

TEST_P(BadRowsOfFormats, SayWhatIsWrong) {
  const auto row = Parse(GetParam().format, GetParam().row);
  EXPECT_EQ(row.status().code(), GetParam().code) << row.status();
  EXPECT_THAT(Message(row.status()), HasSubstr(GetParam().message));
  EXPECT_TRUE(IsBadRow(row.status()));
}

constexpr auto kMalformed = absl::StatusCode::kInvalidArgument;
constexpr auto kEmpty = absl::StatusCode::kFailedPrecondition;

std::string ManyMessages() {
  std::string row = R"({"messages": [)";
  for (int i = 0; i < 1025; ++i) row += std::string(i > 0 ? "," : "") + "{}";
  return row + "]}";
}

INSTANTIATE_TEST_SUITE_P(
    FineTuneRow, BadRowsOfFormats,
    testing::ValuesIn<BadRowCase>(
        {{"NoText", RowFormat::kText, R"({"body": "a"})", kMalformed, "no field 'text'"},
         {"EmptyText", RowFormat::kText, R"({"text": ""})", kEmpty, "'text' is empty"},
         {"NoList", RowFormat::kMessages, R"({"messages": "a"})", kMalformed, "no list 'messages'"},
         {"NoMessage", RowFormat::kMessages, R"({"messages": []})", kEmpty, "is empty"},
         {"NoObject", RowFormat::kMessages, R"({"messages": [3]})", kMalformed,
          "message 1 is not an object"},
         {"NoRole", RowFormat::kMessages, R"({"messages": [{"content": "a"}]})", kMalformed,
          "message 1 has no 'role' (it has: 'content')"},
         {"NoContent", RowFormat::kMessages, R"({"messages": [{"role": "user"}]})", kMalformed,
          "message 1 has no 'content'"},
         {"NullContent", RowFormat::kMessages,
          R"({"messages": [{"role": "user", "content": null}]})", kMalformed,
          "content null and no 'tool_calls'"},
         {"NothingCalled", RowFormat::kMessages,
          R"({"messages": [{"role": "assistant", "tool_calls": []}]})", kMalformed,
          "message 1 has no 'content'"},
         {"NumberForContent", RowFormat::kMessages,
          R"({"messages": [{"role": "user", "content": 5}]})", kMalformed, "the content 5"},
         {"NoPart", RowFormat::kMessages, R"({"messages": [{"role": "user", "content": []}]})",
          kMalformed, "the content []"},
         {"PartOfAnImage", RowFormat::kMessages,
          R"({"messages": [{"role": "user", "content": [{"type": "image"}]}]})", kMalformed,
          R"(the part {"type":"image"})"},
         {"PartThatIsNone", RowFormat::kMessages,
          R"({"messages": [{"role": "user", "content": ["a"]}]})", kMalformed, R"(the part "a")"},
         {"TooMany", RowFormat::kMessages, ManyMessages(), kMalformed, "1025 messages"},
         {"UnknownSpeaker", RowFormat::kShareGpt,
          R"({"conversations": [{"from": "alien", "value": "a"}]})", kMalformed,
          "message 1 is from 'alien'"},
         {"NoValue", RowFormat::kShareGpt, R"({"conversations": [{"from": "human"}]})", kMalformed,
          "no 'from' and 'value'"},
         {"EmptyOutput", RowFormat::kAlpaca, R"({"instruction": "a", "output": ""})", kEmpty,
          "'output' is empty"},
         {"NoOutput", RowFormat::kAlpaca, R"({"instruction": "a"})", kMalformed,
          "no field 'output'"},
         {"NothingAsked", RowFormat::kAlpaca, R"({"instruction": "", "output": "a"})", kEmpty,
          "are empty"}}),
    [](const auto& info) { return info.param.name; });

TEST(JsonShape, WhatNobodyWritesIsRefusedBeforeItIsParsed) {
  EXPECT_TRUE(CheckShape(R"({"a": "[[[[{{{{\"[[", "b": [{}, {"c": []}]})").ok());
  EXPECT_THAT(Message(CheckShape(std::string(65, '['))), HasSubstr("deeper than 64"));
  std::string wide = "{";
  for (int i = 0; i < 4097; ++i) wide += "\"a\":0,";
  EXPECT_THAT(Message(CheckShape(wide)), HasSubstr("more than 4096 members"));
}

}  // namespace
}  // namespace espalier
