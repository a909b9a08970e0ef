#include "worker/data/inspect.h"

#include <algorithm>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"

namespace espalier {
namespace {

constexpr size_t kShownBytes = 400;

// Printable UTF-8 stays; control bytes (terminal escapes among them) do not reach the terminal.
std::string Printable(absl::string_view text) {
  std::string shown;
  for (char c : text.substr(0, kShownBytes)) {
    const auto byte = static_cast<unsigned char>(c);
    const bool control = (byte < 0x20 && c != '\n') || byte == 0x7f;
    absl::StrAppend(&shown, control ? "." : absl::string_view(&c, 1));
    if (c == '\n') absl::StrAppend(&shown, "  | ");
  }
  return absl::StrCat("  | ", shown, text.size() > kShownBytes ? " ..." : "", "\n");
}

absl::StatusOr<std::string> ShowSample(const Dataset& dataset, const Tokenizer& tokenizer,
                                       const std::string& split, int64_t sequence_length,
                                       int64_t sample) {
  ASSIGN_OR_RETURN(const auto table, dataset.Windows(split, sequence_length));
  ASSIGN_OR_RETURN(const Samples samples, table->Read({sample}));
  const std::vector<int32_t> ids(samples.tokens.begin(), samples.tokens.end());
  ASSIGN_OR_RETURN(const std::string text, tokenizer.Decode(ids));
  return absl::StrFormat("\n%s, sequence %d:\n%s", split, sample, Printable(text));
}

}  // namespace

absl::StatusOr<std::string> InspectData(const Dataset& dataset, const Tokenizer& tokenizer,
                                        InspectOptions options) {
  const TokenManifest& manifest = dataset.manifest();
  if (manifest.tokenizer != tokenizer.kind() || manifest.vocab_size != tokenizer.vocab_size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        dataset.folder(), " was prepared with tokenizer '", manifest.tokenizer, "' of ",
        manifest.vocab_size, " ids, got '", tokenizer.kind(), "' of ", tokenizer.vocab_size()));
  }
  std::string text = absl::StrFormat(
      "folder      %s\n"
      "tokenizer   %s, %d ids, %d bytes a token\n"
      "source      %d bytes of text\n"
      "hash        %s\n\n"
      "%-12s%14s%12s%8s%14s\n",
      dataset.folder(), manifest.tokenizer, manifest.vocab_size, manifest.token_bytes,
      manifest.source_bytes, dataset.manifest_hash(), "split", "tokens", "documents", "shards",
      absl::StrCat("x ", options.sequence_length));
  for (const auto& [name, split] : manifest.splits) {
    absl::StrAppendFormat(&text, "%-12s%14d%12d%8d%14d\n", name, split.tokens, split.documents,
                          split.shards.size(),
                          WindowTable::Count(split.tokens, options.sequence_length));
  }
  for (const auto& [name, split] : manifest.splits) {
    const int64_t samples = WindowTable::Count(split.tokens, options.sequence_length);
    for (int64_t sample = 0; sample < std::min(samples, options.shown_samples); ++sample) {
      ASSIGN_OR_RETURN(const std::string shown,
                       ShowSample(dataset, tokenizer, name, options.sequence_length, sample));
      text += shown;
    }
  }
  return text;
}

}  // namespace espalier
