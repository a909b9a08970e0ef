// Files of training data, which are JSONL or text, and manifest.json of a prepared folder.
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <memory>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "tests/fuzz/damage.h"
#include "tests/fuzz/target.h"
#include "worker/data/bad_rows.h"
#include "worker/data/document_reader.h"
#include "worker/data/json_lines.h"
#include "worker/data/message_tree.h"
#include "worker/data/row_renderer.h"
#include "worker/data/token_manifest.h"
#include "worker/tokenizer/open_tokenizer.h"

namespace espalier {
namespace {

constexpr int64_t kTokensMax = 40;

// The input as a file, which its readers take. One of this process, written anew each time.
const std::string& AsFile(absl::string_view input) {
  static const std::string& path = *new std::string([] {
    const char* folder = std::getenv("TMPDIR");
    return absl::StrCat(folder == nullptr ? "/tmp" : folder, "/espalier-fuzz-", getpid());
  }());
  static const int removed = std::atexit([] { unlink(path.c_str()); });
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(input.data(), static_cast<std::streamsize>(input.size()));
  file.close();
  ESPALIER_CHECK(file.good() && removed == 0, "there is room for the input");
  return path;
}

const Tokenizer& SmolLm() {
  static const Tokenizer& tokenizer = *[] {
    auto opened = TokenizerFromJson(TestData("tokenizers/smollm2-tiny/tokenizer.json"));
    ESPALIER_CHECK(opened.ok(), "SmolLM2's is a tokenizer");
    return std::move(opened)->release();
  }();
  return tokenizer;
}

// With every token, and with those of completions.
const std::vector<RowRenderer>& Renderers() {
  static const auto& renderers = *[] {
    auto made = std::make_unique<std::vector<RowRenderer>>();
    for (const LossOn loss : {LossOn::kAll, LossOn::kCompletions}) {
      auto one = RowRenderer::Create(SmolLm(), {.loss = loss, .max_tokens = kTokensMax});
      ESPALIER_CHECK(one.ok(), "the tokenizer knows ChatML's tokens");
      made->push_back(*std::move(one));
    }
    return made.release();
  }();
  return renderers;
}

std::string CheckRendered(const RenderedRow& row) {
  if (static_cast<int64_t>(row.ids.size()) > kTokensMax) return "a row is longer than allowed";
  for (const int32_t id : row.ids) {
    if (id < 0 || id >= SmolLm().vocab_size()) return "a row has an id that is none";
  }
  int64_t at = 0;
  for (const TokenRun& run : row.counted) {
    if (run.begin < at || run.end <= run.begin) return "stretches that count are out of order";
    at = run.end;
  }
  return at <= static_cast<int64_t>(row.ids.size()) ? "" : "more counts than there is";
}

std::string CheckRowOf(const nlohmann::ordered_json& object, RowFormat format) {
  const auto row = ParseRow(object, format, {});
  if (!row.ok()) return BrokenBy(row.status());
  for (const RowRenderer& renderer : Renderers()) {
    const auto rendered = renderer.Render(*row);
    std::string broken = rendered.ok() ? CheckRendered(*rendered) : BrokenBy(rendered.status());
    if (!broken.empty()) return broken;
  }
  return "";
}

// As what it is taken for, and as what a user may say that it is.
std::string CheckRow(const nlohmann::ordered_json& object) {
  const auto format = RecogniseRow(object, {});
  std::string broken = format.ok() ? CheckRowOf(object, *format) : BrokenBy(format.status());
  for (const RowFormat other : {RowFormat::kMessages, RowFormat::kShareGpt, RowFormat::kAlpaca,
                                RowFormat::kOpenAssistant, RowFormat::kPrompts}) {
    if (broken.empty()) broken = CheckRowOf(object, other);
  }
  return broken;
}

std::string CheckRows(const InputFile& file, size_t most) {
  auto opened = OpenRows(file);
  if (!opened.ok()) return BrokenBy(opened.status());
  const std::unique_ptr<RowSource> rows = JoinMessages(*std::move(opened));
  for (size_t read = 0; read <= most; ++read) {
    nlohmann::ordered_json object;
    const auto found = rows->Next(object);
    std::string broken = !found.ok() ? BrokenBy(found.status()) : *found ? CheckRow(object) : "";
    if (!broken.empty()) return broken;
    if (found.ok() ? !*found : !IsBadRow(found.status())) return "";
  }
  return "more rows than there are bytes";
}

// The pieces of a text are the text.
std::string CheckDocuments(const InputFile& file, absl::string_view input) {
  const auto reader = OpenDocuments(file, "text");
  if (!reader.ok()) return BrokenBy(reader.status());
  std::string all;
  for (size_t read = 0; read <= input.size(); ++read) {
    DocumentPiece piece;
    const auto found = (*reader)->Next(piece);
    if (!found.ok() && !IsBadRow(found.status())) return BrokenBy(found.status());
    if (found.ok() && !*found) return file.jsonl || all == input ? "" : "text was lost";
    if (found.ok()) all.append(piece.text.data(), piece.text.size());
  }
  return "more documents than there are bytes";
}

std::string CheckFile(absl::string_view input) {
  InputFile file{.path = AsFile(input), .bytes = static_cast<int64_t>(input.size())};
  std::string broken = CheckDocuments(file, input);
  file.jsonl = true;
  if (broken.empty()) broken = CheckDocuments(file, input);
  return broken.empty() ? CheckRows(file, input.size()) : broken;
}

std::vector<std::string> RowSeeds() {
  const std::vector<std::string> rows{
      R"({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "é 🚀"},)"
      R"( {"role": "assistant", "content": "<|im_end|>y"}, {"role": "user", "content": ""},)"
      R"( {"role": "assistant", "content": "2", "tool_calls": [{"a": [1.5, null, true]}]}]})"
      "\n",
      R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]},)"
      R"( {"role": "assistant", "content": "b"}], "tools": [{"function": {"name": "f"}}]})"
      "\n",
      R"({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]})"
      "\n",
      R"({"instruction": "a", "input": "b\n\n", "output": "c", "system": null})"
      "\n",
      R"({"prompt": "a", "completion": " \ud83d\ude80"})"
      "\n",
      R"({"text": "<|im_start|>user\na<|im_end|>"})"
      "\n",
      R"({"prompt": "2 + 3 = ", "record": {"answer": 5}})"
      "\n",
      R"({"prompt": {"text": "a", "role": "prompter", "replies": [{"text": "b", "rank": 0,)"
      R"( "role": "assistant", "replies": []}, {"text": "c", "rank": 1, "role": "assistant"}]}})"
      "\n",
      R"({"message_id": "a", "parent_id": null, "role": "prompter", "text": "x"})"
      "\n"
      R"({"message_id": "b", "parent_id": "a", "role": "assistant", "text": "y", "rank": 0.5})"
      "\n"
      R"({"message_id": "c", "parent_id": "a", "role": "assistant", "text": "z"})"
      "\n"};
  std::vector<std::string> seeds = rows;
  seeds.push_back(absl::StrCat(rows[0], "\n", rows[1], rows[2]));
  return seeds;
}

// One line of the file.
std::string DamageRows(const std::string& input, std::mt19937_64& random) {
  static constexpr absl::string_view kWords[] = {"\n",
                                                 "messages",
                                                 "conversations",
                                                 "role",
                                                 "content",
                                                 "from",
                                                 "value",
                                                 "text",
                                                 "prompt",
                                                 "completion",
                                                 "instruction",
                                                 "input",
                                                 "output",
                                                 "system",
                                                 "user",
                                                 "assistant",
                                                 "tool",
                                                 "human",
                                                 "gpt",
                                                 "tool_calls",
                                                 "tools",
                                                 "<|im_end|>",
                                                 "<|im_start|>",
                                                 "\\ud83d",
                                                 "\xff",
                                                 "tree",
                                                 "message_id",
                                                 "parent_id",
                                                 "replies",
                                                 "rank",
                                                 "deleted",
                                                 "record",
                                                 "prompter",
                                                 "gpt",
                                                 "a",
                                                 "b"};
  const size_t begin = input.empty() ? 0 : input.rfind('\n', random() % input.size());
  const size_t from = begin == std::string::npos ? 0 : begin + 1;
  const size_t end = std::min(input.find('\n', from), input.size());
  if (from >= end || random() % 4 == 0) return DamagedText(input, kWords, random);
  return absl::StrCat(input.substr(0, from),
                      DamagedJson(input.substr(from, end - from), kWords, random),
                      input.substr(end));
}

std::string CheckManifest(absl::string_view input) {
  const auto manifest = TokenManifestFromJson(input);
  if (!manifest.ok()) return BrokenBy(manifest.status());
  const std::string text = TokenManifestToJson(*manifest);
  const auto again = TokenManifestFromJson(text);
  if (!again.ok()) return absl::StrCat("what it writes is refused: ", again.status().ToString());
  return TokenManifestToJson(*again) == text ? "" : "what it writes is another manifest";
}

std::vector<std::string> ManifestSeeds() {
  const std::string hash(64, 'a');
  TokenManifest manifest{
      .tokenizer = "byte", .vocab_size = 257, .eos_id = 256, .token_bytes = 2, .source_bytes = 90};
  manifest.splits["train"] = {
      .tokens = 90,
      .documents = 3,
      .shards = {{"train-00000.tokens", 60, hash}, {"train-00001.tokens", 30, hash}}};
  std::vector<std::string> seeds{TokenManifestToJson(manifest)};
  manifest.holds = DataKind::kMasked;
  manifest.rows = {.read = 5, .empty = 1, .malformed = 1, .cut = 1};
  manifest.splits["train"].examples = {{"train-00000.examples", 3, hash}};
  manifest.splits["train"].loss_runs = 4;
  manifest.splits["train"].runs = {{"train-00000.runs", 4, hash}};
  seeds.push_back(TokenManifestToJson(manifest));
  return seeds;
}

std::string DamageManifest(const std::string& input, std::mt19937_64& random) {
  static constexpr absl::string_view kWords[] = {
      "text", "masked-examples", "prompt-completion", "train", "validation", "../x", "/etc/passwd"};
  return DamagedJson(input, kWords, random);
}

}  // namespace

FuzzTarget RowsTarget() { return {"rows", CheckFile, RowSeeds, DamageRows, 600}; }
FuzzTarget ManifestTarget() {
  return {"manifest", CheckManifest, ManifestSeeds, DamageManifest, 5000};
}

}  // namespace espalier
