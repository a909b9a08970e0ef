#include "worker/task/rft_table.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/observe/log.h"

namespace espalier {

absl::Status RftTable::Fill(const PromptTable& prompts, const std::vector<RftRow>& rows) {
  std::vector<int64_t> tokens;
  std::vector<ExampleSpan> spans;
  for (const RftRow& row : rows) {
    const std::vector<int32_t>& prompt = prompts.ids(row.prompt);
    ExampleSpan span{.prompt = static_cast<int64_t>(tokens.size())};
    tokens.insert(tokens.end(), prompt.begin(), prompt.end());
    span.completion = static_cast<int64_t>(tokens.size());
    tokens.insert(tokens.end(), row.ids.begin(), row.ids.end());
    if (row.ids.empty() || !Ends(row.ids.back())) tokens.push_back(options_.end_of_text);
    span.end = static_cast<int64_t>(tokens.size());
    spans.push_back(span);
  }
  ASSIGN_OR_RETURN(ExampleTable table,
                   ExampleTable::Create(std::make_shared<VectorTokenRow>(std::move(tokens)),
                                        std::make_shared<VectorExampleIndex>(std::move(spans)),
                                        {options_.sequence_length, options_.end_of_text}));
  const std::string warning = table.summary().Warning(options_.sequence_length);
  if (!warning.empty()) LogWarning(warning);
  const absl::MutexLock lock(&mutex_);
  if (rows_ == nullptr) rows_ = std::make_shared<const ExampleTable>(std::move(table));
  return absl::OkStatus();
}

bool RftTable::Ends(int32_t id) const {
  return id == options_.end_of_text ||
         std::find(options_.ends.begin(), options_.ends.end(), id) != options_.ends.end();
}

std::shared_ptr<const ExampleTable> RftTable::rows() const {
  const absl::MutexLock lock(&mutex_);
  return rows_;
}

int64_t RftTable::Length(int64_t id) const {
  const std::shared_ptr<const ExampleTable> accepted = rows();
  return accepted == nullptr ? options_.sequence_length : accepted->Length(id % accepted->size());
}

double RftTable::mean_length() const {
  const std::shared_ptr<const ExampleTable> accepted = rows();
  if (accepted == nullptr) return 0;
  double sum = 0;
  for (int64_t row = 0; row < accepted->size(); ++row) {
    sum += static_cast<double>(accepted->Length(row));
  }
  return sum / static_cast<double>(accepted->size());
}

absl::StatusOr<Samples> RftTable::Read(std::vector<int64_t> ids) const {
  const std::shared_ptr<const ExampleTable> accepted = rows();
  if (accepted == nullptr) {
    return absl::FailedPreconditionError("completions are sampled before they are read");
  }
  std::vector<int64_t> of_rows;
  for (const int64_t id : ids) {
    if (id < 0 || id >= size()) {
      return absl::OutOfRangeError(absl::StrCat("sample ", id, " is wanted of ", size()));
    }
    of_rows.push_back(id % accepted->size());
  }
  ASSIGN_OR_RETURN(Samples samples, accepted->Read(std::move(of_rows)));
  samples.ids = std::move(ids);  // two uses of a row drop different values
  return samples;
}

}  // namespace espalier
