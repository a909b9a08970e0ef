#include "worker/reward/word_list.h"

#include <algorithm>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/file_system.h"
#include "common/base/status_macros.h"

namespace espalier {
namespace {

constexpr int64_t kFileBytesMax = int64_t{64} << 20;

// The fields of a line of CSV without the blanks and quotes around them; words have no commas.
std::vector<std::string> FieldsOf(absl::string_view line) {
  std::vector<std::string> fields;
  for (absl::string_view field : absl::StrSplit(line, ',')) {
    field = absl::StripAsciiWhitespace(field);
    if (absl::ConsumePrefix(&field, "\"")) absl::ConsumeSuffix(&field, "\"");
    fields.emplace_back(field);
  }
  return fields;
}

// The column that a header calls "Word"; nullopt when the line is no such header.
std::optional<size_t> WordColumn(const std::vector<std::string>& header) {
  const auto it = std::find_if(header.begin(), header.end(), [](const std::string& name) {
    return absl::EqualsIgnoreCase(name, "word");
  });
  if (it == header.end()) return std::nullopt;
  return static_cast<size_t>(it - header.begin());
}

}  // namespace

absl::StatusOr<WordList> WordList::Load(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, PosixFileSystem().Read(path, kFileBytesMax));
  absl::string_view rest = text;
  absl::ConsumePrefix(&rest, "\xEF\xBB\xBF");
  std::vector<WordleWord> words;
  int64_t left_out = 0;
  std::optional<size_t> column;
  for (absl::string_view line : absl::StrSplit(rest, '\n')) {
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line[0] == '#') continue;
    const std::vector<std::string> fields = FieldsOf(line);
    if (!column) {  // the first line that counts
      column = WordColumn(fields);
      if (column) continue;
      column = 0;
    }
    const std::optional<WordleWord> word =
        *column < fields.size() ? WordleWord::Parse(fields[*column]) : std::nullopt;
    if (word) {
      words.push_back(*word);
    } else {
      ++left_out;
    }
  }
  if (words.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " has no word of five letters (", left_out,
                     " lines are something else); it takes one word a line, or a CSV with a column "
                     "'Word'"));
  }
  ASSIGN_OR_RETURN(WordList list, Of(std::move(words)));
  list.left_out_ = left_out;
  return list;
}

absl::StatusOr<WordList> WordList::Of(std::vector<WordleWord> words) {
  if (words.empty()) return absl::InvalidArgumentError("the list of words is empty");
  std::sort(words.begin(), words.end());
  words.erase(std::unique(words.begin(), words.end()), words.end());
  return WordList(std::move(words));
}

bool WordList::contains(WordleWord word) const {
  return std::binary_search(words_.begin(), words_.end(), word);
}

absl::StatusOr<Vocabulary> Vocabulary::Load(const std::string& words_path,
                                            const std::string& secrets_path) {
  ASSIGN_OR_RETURN(WordList guesses, WordList::Load(words_path));
  if (secrets_path.empty()) return Vocabulary{.guesses = guesses, .secrets = guesses};
  ASSIGN_OR_RETURN(WordList secrets, WordList::Load(secrets_path));
  for (const WordleWord secret : secrets.words()) {
    if (guesses.contains(secret)) continue;
    return absl::InvalidArgumentError(absl::StrCat(secret.text(), " of ", secrets_path,
                                                   " is not among the words of ", words_path,
                                                   ", so it could never be guessed; add it there"));
  }
  return Vocabulary{.guesses = std::move(guesses), .secrets = std::move(secrets)};
}

}  // namespace espalier
