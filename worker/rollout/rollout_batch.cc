#include "worker/rollout/rollout_batch.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/base/status_macros.h"
#include "common/observe/log.h"
#include "common/platform/platform.h"
#include "worker/generation/text_stream.h"
#include "worker/tensor/device.h"

namespace espalier {
namespace {

// Rows of lengths that differ little are of one shape on devices that compile for each.
constexpr int64_t kPositionsOfAShape = 32;
// Of a key or a value, at most.
constexpr int64_t kElementBytes = 4;

int64_t MostPositions(const RolloutBatch::Parts& parts) {
  const int64_t of_model = parts.decoder.config().max_position_embeddings;
  const int64_t wanted = parts.limits.positions;
  return wanted > 0 ? std::min(wanted, of_model) : of_model;
}

// What this worker may still take: the model, and what it is trained with, is there already.
// Nothing: nobody says.
std::optional<int64_t> FreeMemory(const RolloutBatch::Parts& parts) {
  const int64_t limit = parts.limits.memory_bytes;
  if (const std::optional<DeviceMemory> device = ReadDeviceMemory(parts.decoder.device())) {
    const int64_t most = limit > 0 ? std::min(limit, device->total_bytes) : device->total_bytes;
    return most - device->now_bytes;
  }
  const absl::StatusOr<MachineMemory> machine = ReadMachineMemory();
  const absl::StatusOr<ProcessMemory> process = ReadProcessMemory();
  if (!machine.ok() || !process.ok()) return std::nullopt;
  const int64_t share = machine->available_bytes / parts.limits.sharers;
  if (limit == 0) return share;
  return std::min(share, limit - (process->now_bytes - process->file_bytes));
}

}  // namespace

absl::Status RolloutBatch::Check(const Parts& parts) {
  const int64_t positions = MostPositions(parts);
  for (const RolloutPrompt& prompt : parts.order.prompts) {
    // Room for one new id at least.
    const absl::Status status =
        CheckSequence({.prompt = prompt.ids, .max_new_tokens = 1, .sample = parts.order.sample},
                      parts.decoder.config(), positions);
    if (status.ok()) continue;
    return absl::Status(status.code(), absl::StrCat("prompt ", prompt.id, ": ", status.message()));
  }
  return absl::OkStatus();
}

RolloutBatch::RolloutBatch(const Parts& parts)
    : parts_(parts), ends_(StopIds(parts.decoder.config().eos_token_ids, parts.tokenizer)) {
  for (const RolloutPrompt& prompt : parts.order.prompts) {
    positions_ = std::max(positions_, static_cast<int64_t>(prompt.ids.size()) + RoomFor(prompt));
  }
  const int64_t whole = (positions_ + kPositionsOfAShape - 1) / kPositionsOfAShape;
  positions_ = std::min(whole * kPositionsOfAShape, MostPositions(parts));
  rows_ = MostRows();
}

int64_t RolloutBatch::RoomFor(const RolloutPrompt& prompt) const {
  const int64_t left = MostPositions(parts_) - static_cast<int64_t>(prompt.ids.size());
  return std::min(parts_.limits.max_new_tokens, left);
}

int64_t RolloutBatch::MostRows() const {
  int64_t items = 0;
  for (const RolloutPrompt& prompt : parts_.order.prompts) {
    items += prompt.samples > 0 ? prompt.samples : parts_.order.samples;
  }
  int64_t rows = parts_.limits.rows > 0 ? parts_.limits.rows : kRolloutRows;
  const int64_t of_row = KeyValueCache::Bytes(parts_.decoder.config(),
                                              {.rows = 1, .positions = positions_}, kElementBytes);
  if (const std::optional<int64_t> free = FreeMemory(parts_)) {
    rows = std::min(rows, *free / 4 / of_row);
  }
  return std::clamp<int64_t>(rows, 1, std::max<int64_t>(1, items));
}

absl::Status RolloutBatch::MakeGenerator() {
  ASSIGN_OR_RETURN(generator_,
                   BatchGenerator::Create(
                       parts_.decoder,
                       {.rows = rows_, .positions = positions_, .worked = parts_.around.worked}));
  return absl::OkStatus();
}

absl::Status RolloutBatch::Begin(const RolloutItem& item) {
  while (!generator_) {
    const absl::Status made = MakeGenerator();
    if (!made.ok()) RETURN_IF_ERROR(TakeFewerRows(made));
  }
  return Add(item);
}

absl::Status RolloutBatch::Add(const RolloutItem& item) {
  const RolloutOrder& order = parts_.order;
  const RolloutPrompt& prompt = order.prompts[static_cast<size_t>(item.prompt)];
  auto running = std::make_unique<Running>(
      Running{.item = item, .ids = {}, .decoder = StreamDecoder(parts_.tokenizer), .text = {}});
  running->decoder.Continue();
  Running* const written = running.get();
  const uint64_t of_step = SplitMix64(order.seed, static_cast<uint64_t>(order.moment.step)).Next();
  ASSIGN_OR_RETURN(const int64_t id,
                   generator_->Add({.prompt = prompt.ids,
                                    .max_new_tokens = RoomFor(prompt),
                                    .sample = order.sample,
                                    .seed = SampleSeed(of_step, static_cast<uint64_t>(prompt.id),
                                                       static_cast<uint64_t>(item.sample)),
                                    .on_token = [this, written](int32_t next) {
                                      return Append(*written, next);
                                    }}));
  running_[id] = std::move(running);
  return absl::OkStatus();
}

// Called by the generator in its turn.
bool RolloutBatch::Append(Running& running, int32_t id) {
  ++new_tokens_;
  running.ids.push_back(id);
  if (std::find(ends_.begin(), ends_.end(), id) != ends_.end()) {
    running.stopped = true;
    return false;
  }
  const size_t before = running.text.size();
  // Nothing of ids that the tokenizer has no token for, as a model may have.
  if (const absl::StatusOr<std::string> text = running.decoder.Append(id); text.ok()) {
    running.text += *text;
  }
  size_t end = std::string::npos;
  for (const std::string& stop : parts_.limits.stop) {
    const size_t from = before - std::min(before, stop.size() - 1);
    const size_t found = running.text.find(stop, from);
    if (found != std::string::npos) end = std::min(end, found + stop.size());
  }
  if (end == std::string::npos) return true;
  running.text.resize(end);
  running.stopped = true;
  return false;
}

absl::Status RolloutBatch::Turn(std::vector<Rollout>& ended) {
  absl::StatusOr<std::vector<Continued>> turn = generator_->Turn();
  if (absl::IsResourceExhausted(turn.status())) return TakeFewerRows(turn.status());
  if (!turn.ok()) return turn.status();
  for (const Continued& one : *turn) {
    if (one.end == SequenceEnd::kFailed) return NotNumbers();
    const auto found = running_.find(one.id);
    Running& done = *found->second;
    if (!done.stopped) done.text += done.decoder.Finish();
    ++ended_;
    ended_tokens_ += static_cast<int64_t>(done.ids.size());
    ended.push_back({.prompt = done.item.prompt,
                     .sample = done.item.sample,
                     .ids = std::move(done.ids),
                     .text = std::move(done.text),
                     .stopped = done.stopped,
                     .judgement = {}});
    running_.erase(found);
  }
  return absl::OkStatus();
}

absl::Status RolloutBatch::TakeFewerRows(const absl::Status& why) {
  const bool can_free = parts_.around.free_memory != nullptr && !freed_;
  if (!absl::IsResourceExhausted(why) || (rows_ == 1 && !can_free)) return why;
  generator_.reset();
  if (can_free) {
    freed_ = true;
    parts_.around.free_memory();
  } else {
    ran_out_ = true;
    rows_ /= 2;
    LogWarning(absl::StrCat("memory ran out while sampling (", why.message(), "); goes on with ",
                            rows_, " rows"));
  }
  const absl::Status made = MakeGenerator();
  if (!made.ok()) return TakeFewerRows(made);
  // Not before: what runs is still known where memory runs out again.
  for (const auto& [id, before] : std::exchange(running_, {})) {
    new_tokens_ -= static_cast<int64_t>(before->ids.size());
    RETURN_IF_ERROR(Add(before->item));
  }
  return absl::OkStatus();
}

double RolloutBatch::mean_tokens() const {
  if (ended_ == 0) return static_cast<double>(parts_.limits.max_new_tokens) / 2;
  return std::max(1.0, static_cast<double>(ended_tokens_) / static_cast<double>(ended_));
}

// What is longer than the mean already has a quarter of it left, say.
double RolloutBatch::tokens_to_come() const {
  const double mean = mean_tokens();
  double tokens = 0;
  for (const auto& [id, running] : running_) {
    tokens += std::max(mean - static_cast<double>(running->ids.size()), mean / 4);
  }
  return tokens;
}

}  // namespace espalier
