// What rft learns from: the rows that were accepted, as samples, and what they are made of. Used by
// rft.h and rft_practice.h. Any thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "espalier/v1/job.pb.h"
#include "worker/data/example_table.h"
#include "worker/data/prompt_table.h"
#include "worker/rollout/rollout.h"
#include "worker/sync/together.h"
#include "worker/task/rft_progress.h"
#include "worker/tokenizer/tokenizer.h"

namespace espalier {

// The rows that were accepted, as samples. Any thread.
class RftTable final : public SampleTable {
 public:
  struct Options {
    int64_t samples = 0;
    int64_t sequence_length = 0;
    int32_t end_of_text = 0;
    std::vector<int32_t> ends = {};  // ids that end a completion as well
  };
  explicit RftTable(const Options& options) : options_(options) {}

  // Prompts with their accepted completions, of which there is at least one: from now on samples
  // can be read. Every rank that shares the table gives the same; the first counts.
  absl::Status Fill(const PromptTable& prompts, const std::vector<RftRow>& rows);

  int64_t size() const override { return options_.samples; }
  int64_t sequence_length() const override { return options_.sequence_length; }
  int64_t Length(int64_t id) const override;
  // FAILED_PRECONDITION before Fill.
  absl::StatusOr<Samples> Read(std::vector<int64_t> ids) const override;
  // Tokens of a row, on average.
  double mean_length() const;

 private:
  std::shared_ptr<const ExampleTable> rows() const;
  bool Ends(int32_t id) const;

  const Options options_;
  mutable absl::Mutex mutex_;
  std::shared_ptr<const ExampleTable> rows_ ABSL_GUARDED_BY(mutex_);
};

// What there is to learn from, and to be tested by.
struct RftInputs {
  v1::JobSpec spec;
  std::shared_ptr<const PromptTable> training;
  std::shared_ptr<const PromptTable> validation;  // null: nothing is tested
  std::shared_ptr<const Tokenizer> tokenizer;
  std::string data_hash;
  // Opens what samples and judges, for a rank.
  std::function<absl::StatusOr<std::unique_ptr<RolloutSource>>(const RolloutPlace&)> open_source;
  std::vector<int64_t> model_ends = {};  // ids that end an answer, besides the tokenizer's
};

}  // namespace espalier
