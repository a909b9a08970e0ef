#include "worker/generation/batch_generator.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/ops/operand_bounds.h"
#include "worker/tensor/torch_compat.h"

namespace espalier {
namespace {

// Prompts have any length, and a shape for each would be a compilation each on a Mac.
constexpr int64_t kPositionsOfAShape = 32;

// Rows of logits as numbers here.
torch::Tensor OnHost(const torch::Tensor& logits) {
  return logits.to(torch::kCPU).to(torch::kFloat).contiguous();
}

absl::Span<float> RowOf(const torch::Tensor& logits, int64_t row) {
  const auto size = static_cast<size_t>(logits.size(1));
  return {logits.data_ptr<float>() + static_cast<size_t>(row) * size, size};
}

}  // namespace

absl::Status CheckSequenceOptions(const Sequence& sequence) {
  if (sequence.max_new_tokens < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_new_tokens is ", sequence.max_new_tokens, "; allowed: 0 or more"));
  }
  return CheckSampleOptions(sequence.sample);
}

absl::Status NotNumbers() {
  return absl::DataLossError(
      "the model gives values that are not numbers: its weights are damaged, its training "
      "diverged, "
      "or fp16 is too narrow for it; take an older checkpoint, or another --precision");
}

absl::StatusOr<BatchGenerator> BatchGenerator::Create(const Decoder& decoder,
                                                      const Options& options) {
  if (options.rows < 1 || options.positions < 1 || options.prompt_part < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a batch of ", options.rows, " rows of ", options.positions,
        " positions, prompts in parts of ", options.prompt_part, "; allowed: 1 or more of each"));
  }
  ASSIGN_OR_RETURN(KeyValueCache cache,
                   decoder.MakeCache({.rows = options.rows, .positions = options.positions}));
  cache.TellWorked(options.worked);
  return BatchGenerator(decoder, options, std::move(cache));
}

BatchGenerator::BatchGenerator(const Decoder& decoder, const Options& options, KeyValueCache cache)
    : decoder_(&decoder),
      options_(options),
      cache_(std::move(cache)),
      steps_(decoder),
      prompts_(options.rows, options.prompt_part),
      rows_(static_cast<size_t>(options.rows)) {}

absl::Status CheckSequence(const Sequence& sequence, const DecoderConfig& config,
                           int64_t positions) {
  RETURN_IF_ERROR(CheckSequenceOptions(sequence));
  if (sequence.prompt.empty()) {
    return absl::InvalidArgumentError(
        "the prompt has no token; start an empty text with the end-of-text id");
  }
  for (const int32_t id : sequence.prompt) {
    if (id >= 0 && id < config.vocab_size) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "prompt id ", id, " is outside the model's vocabulary of ", config.vocab_size, " ids"));
  }
  const int64_t most = std::min(config.max_position_embeddings, positions);
  const int64_t room = most - static_cast<int64_t>(sequence.prompt.size());
  if (sequence.max_new_tokens <= room) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "a prompt of ", sequence.prompt.size(), " tokens and ", sequence.max_new_tokens,
      " new ones exceed the ", most,
      most == config.max_position_embeddings ? " positions of the model" : " positions of a row",
      "; allowed here: at most ", std::max<int64_t>(room, 0), " new tokens, or a shorter prompt"));
}

absl::StatusOr<int64_t> BatchGenerator::Add(Sequence sequence) {
  RETURN_IF_ERROR(Check(sequence));
  waiting_.push_back({next_id_, std::move(sequence)});
  return next_id_++;
}

void BatchGenerator::Cancel(int64_t id) {
  for (size_t i = 0; i < waiting_.size(); ++i) {
    if (waiting_[i].id == id) return EndWaiting(i, SequenceEnd::kCancelled);
  }
  for (std::optional<Running>& row : rows_) {
    if (row && row->id == id && !row->end) row->end = SequenceEnd::kCancelled;
  }
}

void BatchGenerator::EndWaiting(size_t place, SequenceEnd end) {
  ended_.push_back({waiting_[place].id, end, {}});
  waiting_.erase(waiting_.begin() + static_cast<int64_t>(place));
}

absl::StatusOr<std::vector<Continued>> BatchGenerator::Turn() {
  RETURN_IF_ERROR(CatchTorch("generating", [this] { TakeTurn(); }));
  return std::exchange(ended_, {});
}

void BatchGenerator::TakeTurn() {
  ++turn_;
  RemoveEnded();
  int64_t left = options_.prompt_part;
  while (left > 0 && (filling_ || BeginPrompt())) left -= FillPart();
  if (ready_ > 0) Step();
  RemoveEnded();
}

void BatchGenerator::RemoveEnded() {
  const auto tell = [this](int64_t place) {
    Running& row = *rows_[static_cast<size_t>(place)];
    if (*row.end == SequenceEnd::kFailed) {
      // Others' products with what is not theirs are with 0, and 0 times no number is none.
      cache_.Clear(place);
      prompts_.at(place) = {};
    }
    ended_.push_back({row.id, *row.end, std::move(row.new_ids)});
    rows_[static_cast<size_t>(place)].reset();
  };
  if (filling_ && rows_[static_cast<size_t>(*filling_)]->end) {
    tell(*filling_);
    filling_.reset();
  }
  for (int64_t row = ready_ - 1; row >= 0; --row) {
    if (!rows_[static_cast<size_t>(row)]->end) continue;
    tell(row);
    SwapRows(row, --ready_);
  }
}

int64_t BatchGenerator::RowsOf(int64_t owner) const {
  if (owner == 0) return 0;
  return std::count_if(rows_.begin(), rows_.end(), [owner](const std::optional<Running>& row) {
    return row && row->sequence.owner == owner;
  });
}

int64_t BatchGenerator::MostRowsOf(int64_t owner) const {
  return owner == 0 ? options_.rows : options_.rows - options_.rows / 4;
}

std::optional<size_t> BatchGenerator::NextWaiting() const {
  int64_t fewest = options_.rows;
  std::optional<size_t> next;
  for (size_t i = 0; i < waiting_.size(); ++i) {
    const int64_t owner = waiting_[i].sequence.owner, rows = RowsOf(owner);
    if (rows >= std::min(fewest, MostRowsOf(owner))) continue;
    fewest = rows;
    next = i;
    if (rows == 0) break;
  }
  return next;
}

bool BatchGenerator::BeginPrompt() {
  if (ready_ == options_.rows) return false;
  std::optional<size_t> next = NextWaiting();
  while (next && waiting_[*next].sequence.max_new_tokens == 0) {
    EndWaiting(*next, SequenceEnd::kLength);
    next = NextWaiting();
  }
  if (!next) return false;
  Waiting taken = std::move(waiting_[*next]);
  waiting_.erase(waiting_.begin() + static_cast<int64_t>(*next));
  const std::vector<int32_t>& prompt = taken.sequence.prompt;
  const PromptRows::Shared shared = prompts_.Find(prompt, ready_);
  const int64_t row = prompts_.RowFor(shared, ready_, /*busy=*/-1);
  prompt_count_.shared += shared.positions;
  cache_.CopyPrefix(shared.row, row, shared.positions);
  HeldPrompt held{{prompt.begin(), prompt.begin() + shared.positions}, {}, turn_};
  if (shared.whole) held.logits = prompts_.at(shared.row).logits;
  prompts_.at(shared.row).used = turn_;
  prompts_.at(row) = std::move(held);
  Sampler sampler(taken.sequence.sample, taken.sequence.seed, prompt);
  rows_[static_cast<size_t>(row)] =
      Running{taken.id, std::move(taken.sequence), std::move(sampler), {}, {}};
  filling_ = row;
  return true;
}

int64_t BatchGenerator::ComputedPositions(int64_t begin, int64_t count) const {
  const int64_t room =
      std::min(options_.positions, decoder_->config().max_position_embeddings) - begin;
  return std::min(SharedSize(count, kPositionsOfAShape, decoder_->device()), room);
}

int64_t BatchGenerator::FillPart() {
  const std::vector<int32_t>& prompt = rows_[static_cast<size_t>(*filling_)]->sequence.prompt;
  HeldPrompt& held = prompts_.at(*filling_);
  const auto begin = static_cast<int64_t>(held.ids.size());
  const int64_t left = static_cast<int64_t>(prompt.size()) - begin;
  if (left == 0) {  // shared, whole
    Join(held.logits);
    return 0;
  }
  const int64_t count = std::min(options_.prompt_part, left);
  const auto first = prompt.begin() + begin;
  std::vector<int64_t> part(first, first + count);
  part.resize(static_cast<size_t>(ComputedPositions(begin, count)));
  const torch::Tensor ids = cache_.OnDevice(part);
  cache_.BeginPrompt(*filling_, count, ids.size(0));
  prompt_count_.computed += count;
  if (count < left) {
    decoder_->Keep(ids, cache_);
    held.ids.insert(held.ids.end(), first, first + count);
    return count;
  }
  const torch::Tensor logits = OnHost(decoder_->NextLogits(ids, cache_));
  held.ids = prompt;
  const absl::Span<float> values = RowOf(logits, 0);
  held.logits.assign(values.begin(), values.end());
  Join(held.logits);
  return count;
}

void BatchGenerator::Join(std::vector<float> logits) {
  SwapRows(*filling_, ready_);
  filling_.reset();
  Running& row = *rows_[static_cast<size_t>(ready_++)];
  Append(row, row.sampler.Next(absl::MakeSpan(logits)));
  RemoveEnded();
}

void BatchGenerator::Step() {
  std::vector<int64_t> last;
  std::vector<Sampler*> samplers;
  for (int64_t row = 0; row < ready_; ++row) {
    Running& running = *rows_[static_cast<size_t>(row)];
    last.push_back(running.new_ids.back());
    samplers.push_back(&running.sampler);
  }
  const std::vector<std::optional<int32_t>> chosen = steps_.NextIds(last, samplers, cache_);
  for (size_t row = 0; row < chosen.size(); ++row) Append(*rows_[row], chosen[row]);
}

void BatchGenerator::Append(Running& row, std::optional<int32_t> id) {
  const Sequence& sequence = row.sequence;
  if (!id) {
    row.end = SequenceEnd::kFailed;
    return;
  }
  const auto& stop = sequence.stop_ids;
  if (std::find(stop.begin(), stop.end(), *id) != stop.end()) {
    row.end = SequenceEnd::kStopped;
    return;
  }
  row.new_ids.push_back(*id);
  const bool more = static_cast<int64_t>(row.new_ids.size()) < sequence.max_new_tokens;
  if (!more) row.end = SequenceEnd::kLength;
  if (sequence.on_token && !sequence.on_token(*id)) row.end = SequenceEnd::kStopped;
}

// What of them is worth keeping: all of a row that runs, the prompt of one that does not.
void BatchGenerator::SwapRows(int64_t a, int64_t b) {
  if (a == b) return;
  const auto worth = [this](int64_t row) {
    return rows_[static_cast<size_t>(row)] ? cache_.length(row)
                                           : static_cast<int64_t>(prompts_.at(row).ids.size());
  };
  cache_.Swap(a, worth(a), b, worth(b));
  prompts_.Swap(a, b);
  std::swap(rows_[static_cast<size_t>(a)], rows_[static_cast<size_t>(b)]);
}

}  // namespace espalier
