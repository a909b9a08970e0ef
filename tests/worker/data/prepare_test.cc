#include "worker/data/prepare.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/worker/support/test_folder.h"
#include "worker/data/dataset.h"
#include "worker/data/document_reader.h"
#include "worker/data/inspect.h"

namespace espalier {
namespace {

const Tokenizer& Bytes() {
  static const Tokenizer& tokenizer = *MakeByteTokenizer().release();
  return tokenizer;
}

// All tokens of a split as text; every end of a document is written as '|'.
std::string SplitText(const std::string& folder, const std::string& split) {
  const auto data = Dataset::Open(folder, {});
  if (!data.ok()) return std::string(data.status().message());
  const auto row = data->Tokens(split);
  if (!row.ok()) return std::string(row.status().message());
  std::vector<int64_t> ids(static_cast<size_t>((*row)->size()));
  EXPECT_TRUE((*row)->Copy(0, absl::MakeSpan(ids)).ok());
  std::string text;
  for (int64_t id : ids) text += id == Bytes().end_of_text() ? '|' : static_cast<char>(id);
  return text;
}

absl::StatusOr<PrepareResult> Prepare(const PrepareOptions& options) {
  return PrepareData(PosixFileSystem(), Bytes(), options);
}

TEST(Prepare, FilesAreDocumentsInTheOrderOfTheirNames) {
  const TestFolder folder;
  folder.Write("in/b.txt", "second");
  folder.Write("in/a.txt", "first\n");
  folder.Write("in/sub/c.txt", "third");
  folder.Write("in/empty.txt", "");
  folder.Write("in/.hidden", "no");
  folder.Write("in/program.o", std::string("\x7f"
                                           "ELF\0\0",
                                           6));
  const auto result =
      Prepare({.inputs = {folder / "in"}, .output = folder / "out", .split_by = SplitBy::kNone});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(SplitText(folder / "out", "train"), "first\n|second|third|");
  EXPECT_EQ(result->skipped_files, 1);
  EXPECT_EQ(result->manifest.splits.at("train").documents, 3);
  EXPECT_EQ(result->manifest.source_bytes, 17);
  EXPECT_EQ(Names(folder.path()), (std::set<std::string>{"in", "out"}));
  EXPECT_EQ(ReadText(folder / "out/tokenizer.json"), Bytes().Json());
}

TEST(Prepare, LinesOfJsonlAreDocuments) {
  const TestFolder folder;
  const std::string in = folder.Write("in.jsonl",
                                      "{\"body\": \"a\\nb\", \"n\": 1}\n\n"
                                      "{\"body\": \"\"}\n{\"body\": \"\\u00e9\"}");
  ASSERT_TRUE(Prepare({.inputs = {in},
                       .output = folder / "out",
                       .jsonl_field = "body",
                       .split_by = SplitBy::kNone})
                  .ok());
  EXPECT_EQ(SplitText(folder / "out", "train"), "a\nb|\xc3\xa9|");
}

TEST(Prepare, AnyBytesAreKept) {
  const TestFolder folder;
  std::string bytes;
  for (int i = 0; i < 256; ++i) bytes += static_cast<char>(i);
  const std::string in = folder.Write("in.bin", bytes);
  ASSERT_TRUE(Prepare({.inputs = {in}, .output = folder / "out", .split_by = SplitBy::kNone}).ok());
  EXPECT_EQ(SplitText(folder / "out", "train"), bytes + "|");
}

struct BadInput {
  const char* name;
  const char* text;
  const char* message;
};

class BadJsonl : public testing::TestWithParam<BadInput> {};

TEST_P(BadJsonl, NamesFileAndLineAndLeavesNothing) {
  const TestFolder folder;
  const std::string in = folder.Write("in.jsonl", GetParam().text);
  const absl::Status status = Prepare({.inputs = {in}, .output = folder / "out"}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find(GetParam().message), absl::string_view::npos) << status;
  EXPECT_EQ(Names(folder.path()), std::set<std::string>{"in.jsonl"});
}

INSTANTIATE_TEST_SUITE_P(Prepare, BadJsonl,
                         testing::ValuesIn<BadInput>({
                             {"NotJson", "{\"text\": \"a\"}\n\n{oops\n", "in.jsonl:3: not valid"},
                             {"NotAnObject", "{\"text\": \"a\"}\n[1]", "in.jsonl:2: not a JSON"},
                             {"NoField", "{\"body\": \"a\"}", "in.jsonl:1: no field 'text'"},
                             {"NotAText", "{\"text\": 5}", "in.jsonl:1: field 'text' is not"},
                             {"BadUtf8", "{\"text\": \"\xff\"}", "in.jsonl:1: not valid JSON"},
                             {"Empty", "", "the input is empty"},
                             {"OnlyEmptyDocuments", "{\"text\": \"\"}\n", "the input is empty"},
                             {"OneDocument", "{\"text\": \"a\"}", "the other one is empty"},
                         }),
                         [](const auto& info) { return info.param.name; });

TEST(Prepare, ShardsAreCutAtTheirSizeAndReadAsOneRow) {
  const TestFolder folder;
  const std::string in = folder.Write("in.txt", "0123456789");
  const auto result = Prepare(
      {.inputs = {in}, .output = folder / "out", .split_by = SplitBy::kNone, .shard_tokens = 4});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->manifest.splits.at("train").shards.size(), 3u);
  EXPECT_EQ(SplitText(folder / "out", "train"), "0123456789|");
}

TEST(Prepare, FilesLargerThanAPieceAreStreamedWhole) {
  const TestFolder folder;
  std::string text;
  for (int line = 0; text.size() < (9u << 20); ++line) absl::StrAppend(&text, line, " line\n");
  text += std::string(5 << 20, 'x');  // and a line that is longer than a piece
  const std::string in = folder.Write("in.txt", text);
  int64_t reports = 0;
  PrepareOptions options{.inputs = {in}, .output = folder / "out", .split_by = SplitBy::kNone};
  options.progress = [&](const PrepareProgress& p) { reports += p.done_bytes == p.total_bytes; };
  ASSERT_TRUE(Prepare(options).ok());
  EXPECT_EQ(SplitText(folder / "out", "train"), text + "|");
  EXPECT_EQ(reports, 1);
}

TEST(PrepareSplit, TheTailIsCutAtTheEndOfALine) {
  const TestFolder folder;
  std::string text;
  for (int i = 0; i < 100; ++i) text += absl::StrCat("line ", 100 + i, "\n");
  const std::string in = folder.Write("in.txt", text);
  ASSERT_TRUE(Prepare({.inputs = {in}, .output = folder / "out"}).ok());  // one file: the tail
  const std::string train = SplitText(folder / "out", "train");
  const std::string validation = SplitText(folder / "out", "validation");
  EXPECT_EQ(train.substr(0, train.size() - 1) + validation, text + "|");
  EXPECT_EQ(validation.substr(0, 9), "line 190\n");
}

TEST(PrepareSplit, TheTailOfOneLongLineIsCutBetweenCharacters) {
  const TestFolder folder;
  std::string text;
  for (int i = 0; i < 50001; ++i) text += "\xe2\x82\xac";  // three bytes each
  const std::string in = folder.Write("in.txt", text);
  ASSERT_TRUE(Prepare({.inputs = {in}, .output = folder / "out"}).ok());
  const std::string validation = SplitText(folder / "out", "validation");
  EXPECT_EQ(validation.size() % 3, 1u);  // with the end of the document
  EXPECT_EQ(validation[0], '\xe2');
}

TEST(PrepareSplit, DocumentsGoByTheirHashWhateverTheOrder) {
  const TestFolder folder;
  std::string lines, reversed;
  for (int i = 0; i < 2000; ++i) {
    const std::string line = absl::StrCat("{\"text\": \"document ", i, "\"}\n");
    lines += line;
    reversed = line + reversed;
  }
  PrepareOptions options{.inputs = {folder.Write("a.jsonl", lines)}, .output = folder / "a"};
  const auto a = Prepare(options);
  options.inputs = {folder.Write("b.jsonl", reversed)};
  options.output = folder / "b";
  const auto b = Prepare(options);
  options.split_seed = 2;
  options.output = folder / "c";
  const auto c = Prepare(options);
  ASSERT_TRUE(a.ok() && b.ok() && c.ok());
  EXPECT_NEAR(a->manifest.splits.at("validation").documents, 200, 60);
  EXPECT_EQ(a->manifest.splits.at("validation").tokens, b->manifest.splits.at("validation").tokens);
  EXPECT_NE(SplitText(folder / "b", "validation"), SplitText(folder / "c", "validation"));
}

TEST(PrepareSplit, ValidationFilesAreNotTrainedOn) {
  const TestFolder folder;
  folder.Write("in/a.txt", "aa");
  folder.Write("in/b.txt", "bb");
  ASSERT_TRUE(Prepare({.inputs = {folder / "in"},
                       .validation_inputs = {folder / "in/../in/b.txt"},
                       .output = folder / "out",
                       .split_by = SplitBy::kFiles})
                  .ok());
  EXPECT_EQ(SplitText(folder / "out", "train"), "aa|");
  EXPECT_EQ(SplitText(folder / "out", "validation"), "bb|");
}

TEST(Prepare, TheManifestDependsOnContentAlone) {
  const TestFolder folder;
  for (const char* host : {"one", "two"}) {
    folder.Write(absl::StrCat(host, "/in/a.txt"), std::string(1000, 'a') + "\n" + "bbb\n");
    ASSERT_TRUE(
        Prepare({.inputs = {folder / host + "/in"}, .output = folder / host + "/out"}).ok());
  }
  EXPECT_EQ(Dataset::Open(folder / "one/out", {})->manifest_hash(),
            Dataset::Open(folder / "two/out", {})->manifest_hash());
}

TEST(Inspect, ShowsSplitsAndTextWithoutControlCharacters) {
  const TestFolder folder;
  const std::string in =
      folder.Write("in.txt", "red\x1b[31m text\n" + std::string(100, 'z') + "\n");
  ASSERT_TRUE(Prepare({.inputs = {in}, .output = folder / "out", .validation_fraction = 0.9}).ok());
  const auto data = Dataset::Open(folder / "out", {});
  const auto text = InspectData(*data, Bytes(), {.sequence_length = 10});
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(text->find('\x1b'), std::string::npos);
  for (const char* part : {"red.[31m te", "byte, 257 ids", "train", "validation"}) {
    EXPECT_NE(text->find(part), std::string::npos) << part << " not in\n" << *text;
  }
}

TEST(CutAtOrAfter, FindsTheEndOfALineElseOfACharacter) {
  EXPECT_EQ(CutAtOrAfter("ab\ncd\n", 1), 3u);
  EXPECT_EQ(CutAtOrAfter("ab\ncd\n", 3), 3u);
  EXPECT_EQ(CutAtOrAfter("ab\ncd\n", 4), 6u);
  EXPECT_EQ(CutAtOrAfter("abcd", 2), 2u);
  EXPECT_EQ(CutAtOrAfter("a\xe2\x82\xac"
                         "b",
                         2),
            4u);
  EXPECT_EQ(CutAtOrAfter("abc", 9), 3u);
}

}  // namespace
}  // namespace espalier
