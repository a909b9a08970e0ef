// Prompts with completions: from lines of JSONL to rows of tokens and back.
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "tests/worker/support/test_folder.h"
#include "worker/data/dataset.h"
#include "worker/data/inspect.h"
#include "worker/data/prepare.h"
#include "worker/data/shard_writer.h"

namespace espalier {
namespace {

const Tokenizer& Bytes() {
  static const Tokenizer& tokenizer = *MakeByteTokenizer().release();
  return tokenizer;
}

PrepareOptions Options(const TestFolder& folder, const std::string& input,
                       SplitBy split_by = SplitBy::kNone) {
  return {.inputs = {input},
          .output = folder / "out",
          .rows = RowOptions{.format = RowFormat::kPromptCompletion},
          .split_by = split_by};
}

absl::StatusOr<PrepareResult> Prepare(const PrepareOptions& options) {
  return PrepareData(PosixFileSystem(), Bytes(), options);
}

// The tokens [begin, end) as text, the end-of-text token as '|'.
std::string Text(const Samples& samples, int64_t begin, int64_t end) {
  std::string text;
  for (int64_t at = begin; at < end; ++at) {
    const int64_t id = samples.tokens[at];
    text += id == Bytes().end_of_text() ? '|' : static_cast<char>(id);
  }
  return text;
}

// Every example of a split as "prompt>completion|".
std::vector<std::string> Examples(const std::string& folder, const std::string& split) {
  const auto data = Dataset::Open(folder, {});
  if (!data.ok()) return {std::string(data.status().message())};
  const auto table = data->Examples(split, 64);
  if (!table.ok()) return {std::string(table.status().message())};
  std::vector<std::string> examples;
  for (int64_t i = 0; i < (*table)->size(); ++i) {
    const Samples row = *(*table)->Read({i});
    const auto counted = std::find(row.counted.begin(), row.counted.end(), 1);
    const int64_t completion = counted - row.counted.begin() + 1;
    examples.push_back(absl::StrCat(Text(row, 0, completion), ">",
                                    Text(row, completion, completion + row.LossTokens({0, 1}))));
  }
  return examples;
}

TEST(PrepareExamples, ALineIsAPromptWithItsCompletion) {
  const TestFolder folder;
  const std::string in =
      folder.Write("in.jsonl",
                   "{\"prompt\": \"2 + 2 =\", \"completion\": \" 4\"}\r\n"
                   "\n"
                   "{\"completion\": \"\\u00e9\\n\", \"id\": 7, \"prompt\": \"\"}\n"
                   "{\"prompt\": \"last\", \"completion\": \"no newline\"}");
  const auto result = Prepare(Options(folder, in));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(Examples(folder / "out", "train"),
            (std::vector<std::string>{"2 + 2 => 4|", "|>\xc3\xa9\n|", "last>no newline|"}));
  const TokenSplit& split = result->manifest.splits.at("train");
  EXPECT_EQ(split.documents, 3);
  EXPECT_EQ(split.tokens, 10 + 4 + 15);
  EXPECT_EQ(result->manifest.source_bytes, 26);
  EXPECT_EQ(
      Names(folder / "out"),
      (std::set<std::string>{"manifest.json", "tokenizer.json", "tokenizer_config.json",
                             "train-00000.examples", "train-00000.tokens", ".verified.json"}));
}

TEST(PrepareExamples, TheFieldsHaveTheNamesThatAreGiven) {
  const TestFolder folder;
  PrepareOptions options =
      Options(folder, folder.Write("in.ndjson", R"({"question": "a", "answer": "b"})"));
  options.fields = {.prompt = "question", .completion = "answer"};
  ASSERT_TRUE(Prepare(options).ok());
  EXPECT_EQ(Examples(folder / "out", "train"), std::vector<std::string>{"a>b|"});
}

// Two bytes are one token where there are two.
class PairTokenizer : public Tokenizer {
 public:
  PairTokenizer() : Tokenizer("pairs") {}
  int64_t vocab_size() const override { return 256 + 65536 + 1; }
  int32_t end_of_text() const override { return 256 + 65536; }
  std::optional<int32_t> IdOf(absl::string_view) const override { return std::nullopt; }
  TokenKind KindOf(int32_t) const override { return TokenKind::kText; }
  absl::Status Encode(absl::string_view text, std::vector<int32_t>& ids,
                      EncodeOptions) const override {
    for (; text.size() > 1; text.remove_prefix(2)) ids.push_back(256 + text[0] * 256 + text[1]);
    if (!text.empty()) ids.push_back(text[0]);
    return absl::OkStatus();
  }
  absl::StatusOr<absl::string_view> Piece(int32_t) const override { return ""; }
  std::string Json() const override { return "{}"; }
  std::string ConfigJson() const override { return "{}"; }
};

TEST(PrepareExamples, NoTokenLiesAcrossTheBorderOfPromptAndCompletion) {
  const TestFolder folder;
  const PairTokenizer pairs;
  const std::string in = folder.Write("in.jsonl", R"({"prompt": "abc", "completion": "def"})");
  ASSERT_TRUE(PrepareData(PosixFileSystem(), pairs, Options(folder, in)).ok());
  const auto data = Dataset::Open(folder / "out", {});
  const auto row = (*data->Examples("train", 5))->Read({0});
  const auto pair = [](int a, int b) { return int64_t{256} + a * 256 + b; };
  EXPECT_EQ(row->tokens, (std::vector<int64_t>{pair('a', 'b'), 'c', pair('d', 'e'), 'f',
                                               pairs.end_of_text(), pairs.end_of_text()}));
  EXPECT_EQ(row->counted, (std::vector<uint8_t>{0, 1, 1, 1, 0}));
}

struct BadLine {
  const char* name;
  std::string text;
  const char* message;
};

class BadExamples : public testing::TestWithParam<BadLine> {};

TEST_P(BadExamples, NameFileAndLineAndLeaveNothing) {
  const TestFolder folder;
  const std::string good = "{\"prompt\": \"a\", \"completion\": \"b\"}\n\n";
  const std::string in = folder.Write("in.jsonl", good + GetParam().text);
  const absl::Status status = Prepare(Options(folder, in)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  for (const char* part : {"in.jsonl:3: ", GetParam().message}) {
    EXPECT_TRUE(absl::StrContains(status.message(), part)) << part << " not in " << status;
  }
  EXPECT_EQ(Names(folder.path()), std::set<std::string>{"in.jsonl"});
}

std::string Nested(size_t depth) {
  return absl::StrCat(R"({"prompt": "a", "completion": )", std::string(depth, '['),
                      std::string(depth, ']'), "}");
}

INSTANTIATE_TEST_SUITE_P(
    PrepareExamples, BadExamples,
    testing::ValuesIn<BadLine>({
        {"NotJson", "{oops\n", "not valid JSON"},
        {"Cut", R"({"prompt": "a", "completion": "b)", "not valid JSON"},
        {"TwoObjects", R"({"prompt": "a"} {"completion": "b"})", "not valid JSON"},
        {"AList", R"(["a", "b"])", "not a JSON object"},
        {"AText", R"("a")", "not a JSON object"},
        {"ANumber", "5", "not a JSON object"},
        {"Null", "null", "not a JSON object"},
        {"NoPrompt", R"({"completion": "b"})", "no field 'prompt' (the line has: 'completion')"},
        {"NoCompletion", R"({"prompt": "a", "n": 1})", "no field 'completion'"},
        {"OfTextAmongExamples", R"({"text": "a"})", "every line needs a prompt and a completion"},
        {"OtherCase", R"({"Prompt": "a", "completion": "b"})", "no field 'prompt'"},
        {"PromptIsAList", R"({"prompt": ["a"], "completion": "b"})", "'prompt' is not a text"},
        {"PromptIsNull", R"({"prompt": null, "completion": "b"})", "'prompt' is not a text"},
        {"CompletionIsANumber", R"({"prompt": "a", "completion": 1})",
         "'completion' is not a text"},
        {"CompletionIsEmpty", R"({"prompt": "a", "completion": ""})", "'completion' is empty"},
        {"BadUtf8", "{\"prompt\": \"\xff\", \"completion\": \"b\"}", "not valid JSON in UTF-8"},
        {"CutUtf8", "{\"prompt\": \"\xe2\x82\", \"completion\": \"b\"}", "not valid JSON"},
        {"HalfASurrogatePair", R"({"prompt": "\ud83d", "completion": "b"})", "not valid JSON"},
        {"ANulByte", std::string("{\"prompt\": \"\0\", \"completion\": \"b\"}", 34),
         "not valid JSON"},
        {"DeeplyNested", Nested(1000000), "it nests deeper than 64"},
    }),
    [](const auto& info) { return info.param.name; });

TEST(PrepareExamples, ALineWithoutEndIsRefusedBeforeItFillsTheMemory) {
  const TestFolder folder;
  const std::string in = folder.Write("in.jsonl", R"({"prompt": ")");
  std::filesystem::resize_file(in, uintmax_t{1} << 30);  // a hole: it takes no space
  const absl::Status status = Prepare(Options(folder, in)).status();
  EXPECT_TRUE(absl::StrContains(status.message(), "in.jsonl:1: the line is longer than 256 MiB"))
      << status;
}

TEST(PrepareExamples, FilesThatAreNotJsonlAreRefused) {
  const TestFolder folder;
  const absl::Status status = Prepare(Options(folder, folder.Write("in.txt", "a"))).status();
  EXPECT_TRUE(absl::StrContains(status.message(), "in.txt is not JSONL by its name")) << status;
}

std::string Line(int i) {
  return absl::StrCat("{\"prompt\": \"question ", i, "\", \"completion\": \"answer ", i, "\"}\n");
}

TEST(PrepareExamples, AreSplitByTheirHashWhateverTheOrder) {
  const TestFolder folder;
  std::string lines, reversed;
  for (int i = 0; i < 1000; ++i) {
    lines += Line(i) + Line(i);  // equal ones must land on the same side
    reversed = Line(i) + reversed + Line(i);
  }
  std::vector<std::set<std::string>> held_out;
  for (const std::string& text : {lines, reversed}) {
    PrepareOptions options = Options(folder, folder.Write("in.jsonl", text), SplitBy::kAuto);
    options.output = absl::StrCat(folder / "out", held_out.size());
    ASSERT_TRUE(Prepare(options).ok());
    const auto train = Examples(options.output, "train");
    const auto validation = Examples(options.output, "validation");
    EXPECT_EQ(train.size() + validation.size(), 2000u);
    EXPECT_NEAR(static_cast<double>(validation.size()), 200, 80);
    held_out.emplace_back(validation.begin(), validation.end());
    EXPECT_EQ(held_out.back().size() * 2, validation.size());
    for (const std::string& example : train) EXPECT_EQ(held_out.back().count(example), 0u);
  }
  EXPECT_EQ(held_out[0], held_out[1]);
}

TEST(PrepareExamples, TheTailIsCutBetweenExamples) {
  const TestFolder folder;
  std::string lines;
  for (int i = 100; i < 200; ++i) lines += Line(i);
  const std::string in = folder.Write("in.jsonl", lines);
  ASSERT_TRUE(Prepare(Options(folder, in, SplitBy::kTail)).ok());
  const auto validation = Examples(folder / "out", "validation");
  ASSERT_EQ(validation.size(), 10u);
  EXPECT_EQ(validation[0], "question 190>answer 190|");
  EXPECT_EQ(Examples(folder / "out", "train").size(), 90u);
}

TEST(PrepareExamples, EqualInputGivesAnEqualManifest) {
  const TestFolder folder;
  for (const char* host : {"one", "two"}) {
    PrepareOptions options =
        Options(folder, folder.Write(absl::StrCat(host, "/in.jsonl"), Line(1) + Line(2)));
    options.output = folder / host + "/out";
    ASSERT_TRUE(Prepare(options).ok());
  }
  PrepareOptions other = Options(folder, folder.Write("in.jsonl", Line(2) + Line(1)));
  other.output = folder / "three";
  ASSERT_TRUE(Prepare(other).ok());
  const std::string one = Dataset::Open(folder / "one/out", {})->manifest_hash();
  EXPECT_EQ(one, Dataset::Open(folder / "two/out", {})->manifest_hash());
  EXPECT_NE(one, Dataset::Open(folder / "three", {})->manifest_hash());
}

// The border of an example is in the table alone: the same tokens, cut elsewhere, are other data.
TEST(PrepareExamples, TheBorderIsPartOfTheManifest) {
  const TestFolder folder;
  std::set<std::string> hashes;
  for (const char* line :
       {R"({"prompt": "a", "completion": "bc"})", R"({"prompt": "ab", "completion": "c"})"}) {
    PrepareOptions options = Options(folder, folder.Write("in.jsonl", line));
    options.output = absl::StrCat(folder / "out", hashes.size());
    ASSERT_TRUE(Prepare(options).ok());
    hashes.insert(Dataset::Open(options.output, {})->manifest_hash());
  }
  EXPECT_EQ(hashes.size(), 2u);
}

TEST(PrepareExamples, AFolderIsRefusedByWhoWantsTheOtherKind) {
  const TestFolder folder;
  ASSERT_TRUE(Prepare(Options(folder, folder.Write("in.jsonl", Line(1)))).ok());
  PrepareOptions text{.inputs = {folder.Write("in.txt", "a text of its own")},
                      .output = folder / "text",
                      .split_by = SplitBy::kNone};
  ASSERT_TRUE(Prepare(text).ok());
  const absl::Status examples = Dataset::Open(folder / "out", {})->Windows("train", 4).status();
  EXPECT_EQ(examples.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(examples.message(),
                                "out holds prompt/completion examples; train.task: sft uses it"))
      << examples;
  const absl::Status windows = Dataset::Open(folder / "text", {})->Examples("train", 4).status();
  EXPECT_EQ(windows.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(windows.message(), "text holds text; train.task: pretrain uses it"))
      << windows;
}

// A folder of 10 examples in tables of 4 and shards of 7 tokens.
TokenManifest WriteShards(const std::string& folder) {
  std::filesystem::create_directories(folder);
  SplitWriter writer(PosixFileSystem(), {.folder = folder,
                                         .name = "train",
                                         .token_bytes = 1,
                                         .shard_tokens = 7,
                                         .shard_examples = 4});
  for (int32_t i = 0; i < 10; ++i) {
    std::vector<int32_t> ids(static_cast<size_t>(2 + i), 'a' + i);
    ids.back() = '|';
    EXPECT_TRUE(writer.AppendExample(ids, i / 2).ok());
  }
  EXPECT_TRUE(writer.Finish().ok());
  TokenManifest manifest{.holds = DataKind::kPromptCompletion,
                         .tokenizer = "byte",
                         .vocab_size = 200,
                         .eos_id = '|',
                         .token_bytes = 1};
  manifest.splits["train"] = writer.split();
  std::ofstream(folder + "/manifest.json") << TokenManifestToJson(manifest);
  return manifest;
}

TEST(ExampleShards, AreReadAcrossTablesAndShards) {
  const TestFolder folder;
  const TokenManifest manifest = WriteShards(folder.path());
  EXPECT_EQ(manifest.splits.at("train").examples.size(), 3u);
  EXPECT_EQ(manifest.splits.at("train").shards.size(), 10u);
  const auto data = Dataset::Open(folder.path(), {});
  ASSERT_TRUE(data.ok()) << data.status();
  const auto table = data->Examples("train", 20);
  ASSERT_TRUE(table.ok()) << table.status();
  ASSERT_EQ((*table)->size(), 10);
  for (int64_t i = 0; i < 10; ++i) {
    const Samples row = *(*table)->Read({i});
    const std::string text(row.tokens.begin(), row.tokens.end());
    const std::string wanted(static_cast<size_t>(1 + i), static_cast<char>('a' + i));
    const std::string start = i / 2 == 0 ? "|" : "";  // stands in for the empty prompt
    EXPECT_EQ(text.substr(0, start.size() + wanted.size() + 1), start + wanted + "|");
    EXPECT_EQ(row.LossTokens({0, 1}), 2 + i - i / 2);
  }
}

struct Damage {
  const char* name;
  void (*apply)(const std::string& folder);
  const char* message;
};

class DamagedTable : public testing::TestWithParam<Damage> {};

TEST_P(DamagedTable, IsRefusedWithItsNameAndWhatToDo) {
  const TestFolder folder;
  WriteShards(folder.path());
  ASSERT_TRUE(Dataset::Open(folder.path(), {}).ok());
  GetParam().apply(folder.path());
  const absl::Status status = Dataset::Open(folder.path(), {}).status();
  ASSERT_FALSE(status.ok());
  for (const char* part : {"train-00001.examples", GetParam().message, "copy the folder again"}) {
    EXPECT_TRUE(absl::StrContains(status.message(), part)) << part << " not in " << status;
  }
}

std::string SecondTable(const std::string& folder) { return folder + "/train-00001.examples"; }

void Replace(const std::string& folder, const char* by) {
  std::filesystem::copy_file(folder + by, SecondTable(folder),
                             std::filesystem::copy_options::overwrite_existing);
}

INSTANTIATE_TEST_SUITE_P(
    ExampleShards, DamagedTable,
    testing::ValuesIn<Damage>({
        {"Missing", [](const std::string& f) { std::filesystem::remove(SecondTable(f)); },
         "missing"},
        {"Cut", [](const std::string& f) { std::filesystem::resize_file(SecondTable(f), 127); },
         "(cut)"},
        {"TooLong", [](const std::string& f) { std::filesystem::resize_file(SecondTable(f), 129); },
         "too long"},
        {"OneEntry", [](const std::string& f) { FlipByte(SecondTable(f), 72); }, "was altered"},
        {"LastByte", [](const std::string& f) { FlipByte(SecondTable(f), 127); }, "was altered"},
        {"Header", [](const std::string& f) { FlipByte(SecondTable(f), 16); }, "damaged header"},
        {"AnotherTable", [](const std::string& f) { Replace(f, "/train-00000.examples"); },
         "was altered"},
        {"AnotherLength", [](const std::string& f) { Replace(f, "/train-00002.examples"); },
         "belongs to other data"},
        {"AShardOfTokens", [](const std::string& f) { Replace(f, "/train-00000.tokens"); },
         "holds 7 tokens of 1 bytes; the manifest says 4 examples of 16 bytes"},
    }),
    [](const auto& info) { return info.param.name; });

// Hashes that are right do not make entries right: the folder may have been made by anyone.
TEST(ExampleShards, ATableThatContradictsItsTokensIsRefused) {
  const TestFolder folder;
  TokenManifest manifest = WriteShards(folder.path());
  std::swap(manifest.splits["train"].examples[0], manifest.splits["train"].examples[1]);
  folder.Write("manifest.json", TokenManifestToJson(manifest));
  const auto data = Dataset::Open(folder.path(), {});
  ASSERT_TRUE(data.ok()) << data.status();
  const absl::Status status = data->Examples("train", 8).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(absl::StrContains(status.message(), "the table of examples is damaged")) << status;
}

TEST(InspectExamples, ShowsPromptAndCompletionAndWhatTheLengthCuts) {
  const TestFolder folder;
  const std::string in = folder.Write(
      "in.jsonl", "{\"prompt\": \"a red\\u001b[31m hat\", \"completion\": \"is a hat\"}\n" +
                      Line(12345) + R"({"prompt": "a", "completion": "long long long text"})");
  ASSERT_TRUE(Prepare(Options(folder, in)).ok());
  const auto text =
      InspectData(*Dataset::Open(folder / "out", {}), Bytes(), {.sequence_length = 17});
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_FALSE(absl::StrContains(*text, "\x1b"));
  for (const char* part :
       {"holds       prompt-completion", "examples", "example 0, prompt:\n  | .[31m hat",
        "completion:\n  | is a hat\n", "of 3, 2 lose the front of their prompt and 1 the end"}) {
    EXPECT_TRUE(absl::StrContains(*text, part)) << part << " not in\n" << *text;
  }
}

}  // namespace
}  // namespace espalier
