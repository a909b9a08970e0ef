#include "worker/data/document_reader.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace espalier {
namespace {

constexpr size_t kPieceBytes = size_t{4} << 20;
constexpr size_t kLineBytesMax = size_t{256} << 20;
constexpr size_t kCutSearchBytes = size_t{64} << 10;

bool IsContinuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

// Whether a word may begin with this byte; no part of white space.
bool BeginsWord(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return (byte > 0x20 && byte < 0x7f) || (byte >= 0xc3 && (byte < 0xe1 || byte > 0xe3));
}

// Where a piece that is followed by more text ends, so that no tokenizer sees where it was cut:
// after a line that ends with a word and is followed by another one. Else after its last line, else
// before the character that may go on.
size_t PieceEnd(absl::string_view text) {
  const size_t first = text.size() - std::min(text.size(), kCutSearchBytes);
  for (size_t end = text.size() - 1; end > std::max<size_t>(first, 1); --end) {
    const bool between = text[end - 1] == '\n' && BeginsWord(text[end]);
    if (between && !absl::ascii_isspace(static_cast<unsigned char>(text[end - 2]))) return end;
  }
  const size_t newline = text.rfind('\n');
  if (newline != absl::string_view::npos) return newline + 1;
  size_t end = text.size() - 1;
  while (end > text.size() - 4 && IsContinuation(text[end])) --end;
  return end;
}

class TextReader : public DocumentReader {
 public:
  explicit TextReader(ForwardFile file) : file_(std::move(file)) {}

  absl::StatusOr<bool> Next(DocumentPiece& piece) override {
    RETURN_IF_ERROR(file_.Fill(kPieceBytes + 1));  // one more byte tells whether the file goes on
    if (file_.held().empty()) return false;
    const bool last = file_.held().size() <= kPieceBytes;
    const size_t end = last ? file_.held().size() : PieceEnd(file_.held().substr(0, kPieceBytes));
    piece.position = file_.position();
    piece.first = piece.position == 0;
    piece.last = last;
    piece.text = file_.Take(end);
    return true;
  }

 private:
  ForwardFile file_;
};

// The lines of a JSONL file as objects.
class JsonLines {
 public:
  explicit JsonLines(ForwardFile file) : file_(std::move(file)) {}

  // Sets `value` to the object of the next line that is not empty; false at the end of the file.
  absl::StatusOr<bool> Next(nlohmann::json& value) {
    do {
      position_ = file_.position();
      ASSIGN_OR_RETURN(const bool found, NextLine());
      if (!found) return false;
    } while (absl::StripAsciiWhitespace(line_).empty());
    value = nlohmann::json::parse(line_.begin(), line_.end(), nullptr, /*allow_exceptions=*/false);
    if (value.is_discarded()) return Error("not valid JSON in UTF-8");
    if (!value.is_object()) return Error("not a JSON object");
    return true;
  }

  // Moves the text of a field out of the object. `advice`: what to do when there is none.
  absl::StatusOr<std::string> TakeText(nlohmann::json& object, const std::string& field,
                                       absl::string_view advice) const {
    const auto it = object.find(field);
    if (it == object.end()) {
      std::string keys;
      for (const auto& [key, unused] : object.items()) absl::StrAppend(&keys, " '", key, "'");
      return Error(absl::StrCat("no field '", field, "' (the line has:", keys.substr(0, 200), "); ",
                                advice));
    }
    if (!it->is_string()) return Error(absl::StrCat("field '", field, "' is not a text"));
    return std::move(it->get_ref<std::string&>());
  }

  absl::Status Error(absl::string_view what) const {
    return absl::InvalidArgumentError(
        absl::StrCat(file_.path(), ":", line_number_ + (line_.empty() ? 1 : 0), ": ", what));
  }

  // Bytes of the file before the line.
  int64_t position() const { return position_; }

 private:
  // Sets line_; false at the end of the file.
  absl::StatusOr<bool> NextLine() {
    line_ = {};
    size_t newline = file_.held().find('\n');
    for (size_t size = kPieceBytes; newline == absl::string_view::npos && !file_.ended();
         size *= 2) {
      if (size > kLineBytesMax) return Error("the line is longer than 256 MiB");
      RETURN_IF_ERROR(file_.Fill(size));
      newline = file_.held().find('\n');
    }
    if (file_.held().empty()) return false;
    line_ = newline == absl::string_view::npos ? file_.Take(file_.held().size())
                                               : file_.Take(newline + 1);
    ++line_number_;
    return true;
  }

  ForwardFile file_;
  absl::string_view line_;
  int64_t position_ = 0;
  int64_t line_number_ = 0;
};

class JsonlReader : public DocumentReader {
 public:
  JsonlReader(ForwardFile file, std::string field)
      : lines_(std::move(file)), field_(std::move(field)) {}

  absl::StatusOr<bool> Next(DocumentPiece& piece) override {
    nlohmann::json line;
    do {
      ASSIGN_OR_RETURN(const bool found, lines_.Next(line));
      if (!found) return false;
      ASSIGN_OR_RETURN(document_, lines_.TakeText(line, field_,
                                                  "choose one with --jsonl-field, or prepare "
                                                  "prompts with --format prompt-completion"));
    } while (document_.empty());
    piece = {.text = document_, .first = true, .last = true, .position = lines_.position()};
    return true;
  }

 private:
  JsonLines lines_;
  std::string field_;
  std::string document_;
};

class JsonlExamples : public ExampleReader {
 public:
  JsonlExamples(ForwardFile file, ExampleFields fields)
      : lines_(std::move(file)), fields_(std::move(fields)) {}

  absl::StatusOr<bool> Next(PromptCompletion& example) override {
    nlohmann::json line;
    ASSIGN_OR_RETURN(const bool found, lines_.Next(line));
    if (!found) return false;
    ASSIGN_OR_RETURN(prompt_, lines_.TakeText(line, fields_.prompt,
                                              "every line needs a prompt and a completion; choose "
                                              "the field with --prompt-field"));
    ASSIGN_OR_RETURN(completion_,
                     lines_.TakeText(line, fields_.completion,
                                     "every line needs a prompt and a completion; choose the field "
                                     "with --completion-field"));
    if (completion_.empty()) {
      return lines_.Error(absl::StrCat("field '", fields_.completion,
                                       "' is empty: there is nothing to learn from the line; "
                                       "remove it"));
    }
    example = {.prompt = prompt_, .completion = completion_, .position = lines_.position()};
    return true;
  }

 private:
  JsonLines lines_;
  ExampleFields fields_;
  std::string prompt_;
  std::string completion_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DocumentReader>> OpenDocuments(const InputFile& file,
                                                              const std::string& jsonl_field) {
  ASSIGN_OR_RETURN(ForwardFile opened, ForwardFile::Open(file.path));
  std::unique_ptr<DocumentReader> reader;
  if (file.jsonl) {
    reader = std::make_unique<JsonlReader>(std::move(opened), jsonl_field);
  } else {
    reader = std::make_unique<TextReader>(std::move(opened));
  }
  return reader;
}

absl::StatusOr<std::unique_ptr<ExampleReader>> OpenExamples(const InputFile& file,
                                                            const ExampleFields& fields) {
  if (!file.jsonl) {
    return absl::InvalidArgumentError(
        absl::StrCat(file.path,
                     " is not JSONL by its name, and prompts with completions come as "
                     "lines of JSONL; name files that end in .jsonl or .ndjson"));
  }
  ASSIGN_OR_RETURN(ForwardFile opened, ForwardFile::Open(file.path));
  return std::make_unique<JsonlExamples>(std::move(opened), fields);
}

size_t CutAtOrAfter(absl::string_view text, size_t wanted) {
  if (wanted == 0 || wanted >= text.size()) return std::min(wanted, text.size());
  const size_t newline = text.substr(wanted - 1, kCutSearchBytes).find('\n');
  if (newline != absl::string_view::npos) return wanted + newline;
  size_t cut = wanted;
  while (cut < text.size() && cut < wanted + 3 && IsContinuation(text[cut])) ++cut;
  return cut;
}

}  // namespace espalier
