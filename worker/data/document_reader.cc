#include "worker/data/document_reader.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/data/bad_rows.h"
#include "worker/data/json_lines.h"

namespace espalier {
namespace {

constexpr size_t kPieceBytes = size_t{4} << 20;
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

class JsonlReader : public DocumentReader {
 public:
  JsonlReader(ForwardFile file, std::string field)
      : lines_(std::move(file)), field_(std::move(field)) {}

  absl::StatusOr<bool> Next(DocumentPiece& piece) override {
    nlohmann::ordered_json line;
    ASSIGN_OR_RETURN(const bool found, lines_.Next(line));
    if (!found) return false;
    absl::StatusOr<std::string> document =
        TakeText(line, field_,
                 "choose one with --jsonl-field, or prepare conversations, or prompts with their "
                 "completions, with --format auto");
    if (document.ok() && document->empty()) document = EmptyRow("the text is empty");
    if (!document.ok()) return lines_.Error(document.status());
    document_ = *std::move(document);
    piece = {.text = document_, .first = true, .last = true, .position = lines_.position()};
    return true;
  }

 private:
  JsonLines lines_;
  std::string field_;
  std::string document_;
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

size_t CutAtOrAfter(absl::string_view text, size_t wanted) {
  if (wanted == 0 || wanted >= text.size()) return std::min(wanted, text.size());
  const size_t newline = text.substr(wanted - 1, kCutSearchBytes).find('\n');
  if (newline != absl::string_view::npos) return wanted + newline;
  size_t cut = wanted;
  while (cut < text.size() && cut < wanted + 3 && IsContinuation(text[cut])) ++cut;
  return cut;
}

}  // namespace espalier
