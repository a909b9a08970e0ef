#include "worker/data/prompt_table.h"

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace espalier {

absl::StatusOr<PromptTable> PromptTable::Create(const TokenRow& tokens,
                                                absl::Span<const PromptEntry> entries,
                                                absl::string_view records) {
  const auto bytes = static_cast<int64_t>(records.size());
  std::vector<Row> rows;
  PromptEntry before;
  for (const PromptEntry& entry : entries) {
    const bool sound = entry.end > before.end && entry.end <= tokens.size() &&
                       entry.record_end > before.record_end && entry.record_end <= bytes;
    if (!sound) {
      return absl::DataLossError(absl::StrCat(
          "prompt ", rows.size(), " says that its tokens are [", before.end, ", ", entry.end,
          ") and its record [", before.record_end, ", ", entry.record_end, "); the split has ",
          tokens.size(), " and ", bytes, ": the table of prompts is damaged"));
    }
    std::vector<int64_t> ids(static_cast<size_t>(entry.end - before.end));
    RETURN_IF_ERROR(tokens.Copy(before.end, absl::MakeSpan(ids)));
    const auto size = static_cast<size_t>(entry.record_end - before.record_end);
    rows.push_back(
        {.ids = {ids.begin(), ids.end()},
         .record = std::string(records.substr(static_cast<size_t>(before.record_end), size))});
    before = entry;
  }
  if (before.end == tokens.size() && before.record_end == bytes) {
    return PromptTable(std::move(rows));
  }
  return absl::DataLossError(absl::StrCat("the prompts end at token ", before.end, " and byte ",
                                          before.record_end, ", the split at ", tokens.size(),
                                          " and ", bytes, ": the table of prompts is damaged"));
}

}  // namespace espalier
