// ExampleTable: a prompt with its completion as a sample of fixed length, for supervised
// fine-tuning. Used by dataset.h and shard_reader.h, which map the examples, and by the tasks sft
// and rft (worker/task).
// Immutable: any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/data/samples.h"

namespace espalier {

// Where an example lies in the row of tokens of its split.
struct ExampleSpan {
  int64_t prompt = 0;      // its first token; the prompt may be empty
  int64_t completion = 0;  // the completion's first token
  int64_t end = 0;         // behind the end-of-text token that ends the completion
};

// The examples of a split, in the order of their tokens.
class ExampleIndex {
 public:
  virtual ~ExampleIndex() = default;
  virtual int64_t size() const = 0;
  // `example` in [0, size()).
  virtual ExampleSpan At(int64_t example) const = 0;
};

class VectorExampleIndex : public ExampleIndex {
 public:
  explicit VectorExampleIndex(std::vector<ExampleSpan> spans) : spans_(std::move(spans)) {}
  int64_t size() const override { return static_cast<int64_t>(spans_.size()); }
  ExampleSpan At(int64_t example) const override { return spans_[static_cast<size_t>(example)]; }

 private:
  std::vector<ExampleSpan> spans_;
};

// A row is one example: prompt, completion, end-of-text token, and then end-of-text tokens up to
// T + 1. Exactly the completion's tokens and its end-of-text token count in the loss. Every one of
// them has a token before it: an empty prompt is stood in for by one end-of-text token.
// An example of more than T + 1 tokens loses the front of its prompt, so that the completion stays
// whole; a completion of more than T tokens keeps the prompt's last one and loses its own end.
class ExampleTable : public ExampleRows {
 public:
  struct Options {
    int64_t sequence_length = 0;
    int64_t end_of_text = 0;
  };
  // What the length does to the examples of the table.
  struct Summary {
    int64_t examples = 0;
    int64_t prompts_cut = 0;      // examples that lost the front of their prompt
    int64_t completions_cut = 0;  // examples that lost the end of their completion
    int64_t longest = 0;          // tokens of the longest example, uncut
    int64_t loss_tokens = 0;      // targets that count, of all examples

    // "120 of 5000 examples are longer than 257 tokens ..."; empty when nothing is cut.
    std::string Warning(int64_t sequence_length) const;
  };
  // Looks at every entry of the index: DATA_LOSS names one that does not follow the one before it
  // or leaves the row.
  static absl::StatusOr<ExampleTable> Create(std::shared_ptr<const TokenRow> row,
                                             std::shared_ptr<const ExampleIndex> index,
                                             Options options);

  int64_t size() const override { return index_->size(); }
  int64_t sequence_length() const override { return options_.sequence_length; }
  int64_t Length(int64_t id) const override;
  absl::Status ReadRow(int64_t id, absl::Span<int64_t> tokens,
                       absl::Span<uint8_t> counted) const override;
  const Summary& summary() const { return summary_; }

 private:
  // Tokens that a row keeps of an example.
  struct Kept {
    int64_t prompt = 0;  // its last so many; at least 1
    int64_t completion = 0;
  };
  ExampleTable(std::shared_ptr<const TokenRow> row, std::shared_ptr<const ExampleIndex> index,
               Options options);
  Kept KeptOf(const ExampleSpan& span) const;

  std::shared_ptr<const TokenRow> row_;
  std::shared_ptr<const ExampleIndex> index_;
  Options options_;
  Summary summary_;
};

}  // namespace espalier
