#include "worker/data/preview.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "worker/data/inspect.h"

namespace espalier {
namespace {

constexpr char kCounts[] = "\x1b[32m", kSpecial[] = "\x1b[1m", kFaint[] = "\x1b[2m";
constexpr char kPlain[] = "\x1b[0m";

// Bytes of the UTF-8 character that `text` begins with; 0 when it begins with none.
size_t CharacterBytes(absl::string_view text) {
  const auto byte = static_cast<unsigned char>(text[0]);
  if (byte < 0x80) return 1;
  const size_t size = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : 2;
  if (byte < 0xc2 || byte > 0xf4 || text.size() < size) return 0;
  for (size_t i = 1; i < size; ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xc0) != 0x80) return 0;
  }
  return size;
}

// A token as one can see it, a special one as its name: no control character reaches the terminal
// (U+0080 to U+009F among them).
std::string Spelled(absl::string_view piece, bool special) {
  std::string spelled;
  while (!piece.empty()) {
    const auto byte = static_cast<unsigned char>(piece[0]);
    const size_t size = CharacterBytes(piece);
    const bool c1 = size == 2 && byte == 0xc2 && static_cast<unsigned char>(piece[1]) < 0xa0;
    if (byte == '\n') {
      absl::StrAppend(&spelled, "\\n");
    } else if (byte == '\t') {
      absl::StrAppend(&spelled, "\\t");
    } else if (!special && (byte == '|' || byte == '\\')) {
      absl::StrAppend(&spelled, "\\", piece.substr(0, 1));
    } else if (byte < 0x20 || byte == 0x7f || size == 0 || c1) {
      absl::StrAppendFormat(&spelled, "\\x%02x", byte);
    } else {
      absl::StrAppend(&spelled, piece.substr(0, size));
    }
    piece.remove_prefix(std::max<size_t>(c1 ? 1 : size, 1));
  }
  return spelled;
}

// Writes the tokens of one sample.
class SampleText {
 public:
  SampleText(const Tokenizer& tokenizer, bool colour) : tokenizer_(tokenizer), colour_(colour) {}

  absl::Status Add(int32_t id, bool counts) {
    ASSIGN_OR_RETURN(const absl::string_view piece, tokenizer_.Piece(id));
    if (line_open_ && counts != counts_) EndLine();
    if (!line_open_) {
      absl::StrAppend(&text_, counts ? "  counts | " : "         | ");
      if (colour_) absl::StrAppend(&text_, counts ? kCounts : "");
    } else {
      absl::StrAppend(&text_, "|");
    }
    line_open_ = true;
    counts_ = counts;
    const bool special = tokenizer_.IsSpecial(id) || id == tokenizer_.end_of_text();
    const std::string shown = Spelled(piece, special);
    if (colour_ && special) {
      absl::StrAppend(&text_, kSpecial, shown, kPlain, counts ? kCounts : "");
    } else {
      absl::StrAppend(&text_, shown);
    }
    if (absl::EndsWith(piece, "\n")) EndLine();
    return absl::OkStatus();
  }

  // A line between the tokens.
  void Note(absl::string_view note) {
    if (line_open_) EndLine();
    absl::StrAppend(&text_, colour_ ? kFaint : "", "  -- ", note, colour_ ? kPlain : "", "\n");
  }

  std::string Take() {
    if (line_open_) EndLine();
    return std::move(text_);
  }

 private:
  void EndLine() {
    absl::StrAppend(&text_, colour_ ? kPlain : "", "\n");
    line_open_ = false;
  }

  const Tokenizer& tokenizer_;
  bool colour_;
  std::string text_;
  bool line_open_ = false;
  bool counts_ = false;
};

absl::StatusOr<std::string> ShowSample(const SampleTable& table, const Tokenizer& tokenizer,
                                       const PreviewOptions& options, int64_t number) {
  ASSIGN_OR_RETURN(const Samples sample, table.Read({number}));
  const bool text = sample.counted.empty();
  size_t used = sample.tokens.size();  // behind them are end-of-text tokens that fill the row
  const int32_t end = tokenizer.end_of_text();
  while (!text && used > 1 && sample.tokens[used - 1] == end && sample.counted[used - 2] == 0) {
    --used;
  }
  SampleText shown(tokenizer, options.colour);
  const size_t second = sample.parts.empty() ? 0 : static_cast<size_t>(sample.parts[0][1].begin);
  for (size_t i = 0; i < used; ++i) {
    const auto id = static_cast<int32_t>(sample.tokens[i]);
    if (second > 0 && i == second) shown.Note("the rejected answer, which sees none of the above");
    RETURN_IF_ERROR(shown.Add(id, i > 0 && (text || sample.counted[i - 1] != 0)));
    if (text && id == end) shown.Note("a document ends");
  }
  const size_t filled = sample.tokens.size() - used;
  if (filled > 0) shown.Note(absl::StrCat(filled, " more that fill the row"));
  return absl::StrFormat("%s, %s %d: %d tokens, %d of them count\n%s", options.split,
                         text ? "sequence" : "example", number, used, sample.LossTokens({0, 1}),
                         shown.Take());
}

absl::StatusOr<std::shared_ptr<const SampleTable>> TableOf(const Dataset& dataset,
                                                           const PreviewOptions& options) {
  switch (dataset.manifest().holds) {
    case DataKind::kText:
      return dataset.Windows(options.split, options.sequence_length);
    case DataKind::kPromptCompletion:
      return dataset.Examples(options.split, options.sequence_length);
    case DataKind::kMasked:
      return dataset.Masked(options.split, options.sequence_length);
    case DataKind::kPreferences:
      return dataset.Preferences(options.split, options.sequence_length);
    case DataKind::kPrompts:
      break;  // no samples: PreviewPrompts
  }
  return absl::InternalError("unknown kind of data");
}

absl::Status CheckFirst(const PreviewOptions& options, int64_t size) {
  if (options.first < size) return absl::OkStatus();
  return absl::OutOfRangeError(absl::StrCat("row ", options.first, " is wanted, and the split '",
                                            options.split, "' has rows 0 to ", size - 1));
}

absl::StatusOr<std::string> PreviewPrompts(const Dataset& dataset, const Tokenizer& tokenizer,
                                           const PreviewOptions& options) {
  ASSIGN_OR_RETURN(const std::shared_ptr<const PromptTable> table, dataset.Prompts(options.split));
  RETURN_IF_ERROR(CheckFirst(options, table->size()));
  std::string text;
  const int64_t end = std::min(options.first + options.rows, table->size());
  for (int64_t i = options.first; i < end; ++i) {
    SampleText shown(tokenizer, options.colour);
    for (const int32_t id : table->ids(i)) RETURN_IF_ERROR(shown.Add(id, /*counts=*/false));
    absl::StrAppendFormat(&text, "%s%s, prompt %d: %d tokens\n%s  record | %s\n",
                          text.empty() ? "" : "\n", options.split, i, table->ids(i).size(),
                          shown.Take(), Spelled(table->record(i), /*special=*/true));
  }
  return text;
}

}  // namespace

absl::StatusOr<std::string> PreviewData(const Dataset& dataset, const Tokenizer& tokenizer,
                                        const PreviewOptions& options) {
  RETURN_IF_ERROR(CheckTokenizer(dataset, tokenizer));
  if (dataset.manifest().holds == DataKind::kPrompts) {
    return PreviewPrompts(dataset, tokenizer, options);
  }
  ASSIGN_OR_RETURN(const std::shared_ptr<const SampleTable> table, TableOf(dataset, options));
  RETURN_IF_ERROR(CheckFirst(options, table->size()));
  std::string text;
  const int64_t shown = std::min(options.rows, table->size() - options.first);
  for (int64_t i = options.first; i < options.first + shown; ++i) {
    ASSIGN_OR_RETURN(const std::string sample, ShowSample(*table, tokenizer, options, i));
    absl::StrAppend(&text, text.empty() ? "" : "\n", sample);
  }
  return text;
}

}  // namespace espalier
