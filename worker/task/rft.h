// The task `rft`, rejection-sampling fine-tuning (Yuan et al. 2023), in phases: the validation
// prompts are answered; completions of the training prompts are sampled until one of each is
// accepted; these are learnt as in sft; the validation prompts are answered again. This file is
// what a pass learns; rft_practice.h does the rest. Used by worker/task/open_task.cc and tests.
// Compute thread.
//
// A sample is a place among as many as there are prompts: it is the accepted row of that number,
// counted round and round, so that steps of an epoch are known before anything is sampled, and
// every step is full.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "worker/data/example_table.h"
#include "worker/data/prompt_table.h"
#include "worker/rollout/rollout.h"
#include "worker/task/next_token.h"
#include "worker/task/rft_progress.h"
#include "worker/task/task.h"
#include "worker/tokenizer/tokenizer.h"

namespace espalier {

// The rows that were accepted, as samples. Any thread.
class RftTable final : public SampleTable {
 public:
  struct Options {
    int64_t samples = 0;
    int64_t sequence_length = 0;
    int32_t end_of_text = 0;
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
  std::function<absl::StatusOr<std::unique_ptr<RolloutSource>>(const RankContext&)> open_source;
};

class Rft final : public Task {
 public:
  explicit Rft(RftInputs inputs);

  std::shared_ptr<const SampleTable> training() const override { return table_; }
  // Prompts that are counted, not read; null where there are none.
  std::shared_ptr<const SampleTable> validation() const override { return validation_; }
  TokenBatch Batch(const Samples& samples, SlotRange rows, Transfers& transfers) const override {
    return learns_.Batch(samples, rows, transfers);
  }
  TokenBatch MadeUpBatch(int64_t rows, int64_t sequence_length,
                         torch::Device device) const override {
    return learns_.MadeUpBatch(rows, sequence_length, device);
  }
  int64_t LossTokens(const Samples& samples, SlotRange rows) const override {
    return learns_.LossTokens(samples, rows);
  }
  torch::Tensor LossSum(const Model& model, const TokenBatch& batch,
                        const PassInputs& inputs) const override {
    return learns_.LossSum(model, batch, inputs);
  }
  absl::StatusOr<std::unique_ptr<Practice>> MakePractice(const PracticePlace& place) const override;

 private:
  const RftInputs inputs_;
  const std::shared_ptr<RftTable> table_;
  const std::shared_ptr<const SampleTable> validation_;
  const NextToken learns_;
};

// The data hold prompts (DataKind::kPrompts).
absl::StatusOr<std::unique_ptr<Task>> OpenRft(const v1::JobSpec& spec, const Dataset& dataset);

}  // namespace espalier
