// What the trainer does for its memory: finding the size of a pass, watching it, trimming.
#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "common/observe/log.h"
#include "common/platform/platform.h"
#include "worker/memory/memory_advice.h"
#include "worker/tensor/torch_compat.h"
#include "worker/train/plan.h"
#include "worker/train/trainer.h"

namespace espalier {

absl::Status Trainer::SetUpGovernor() {
  const v1::BatchSpec& batch = spec_.batch();
  ASSIGN_OR_RETURN(const std::optional<int64_t> fixed,
                   MicroBatchOf(batch, collective_.rank(), collective_.world_size()));
  const absl::StatusOr<MemoryLimit> limit =
      meter_.Limit(options_.memory_limit_bytes, options_.local_ranks);
  if (!limit.ok() && !fixed) return limit.status();
  const int64_t largest = std::min<int64_t>(batch.max_micro_batch(), spec_.train().global_batch());
  governor_ =
      MemoryGovernor({.min = fixed.value_or(std::min<int64_t>(batch.min_micro_batch(), largest)),
                      .max = fixed.value_or(largest),
                      .limit_bytes = limit.ok() ? limit->bytes : 0,
                      .target_fraction = batch.target_memory_fraction()});
  if (!fixed) limit_source_ = limit->source;
  return absl::OkStatus();
}

// Passes over made-up tokens, whose gradients are dropped, beside the rows that the samples of a
// step look up. Nothing to do after the first step.
absl::Status Trainer::Probe(const Samples& samples) {
  if (!governor_.NextProbe()) return absl::OkStatus();
  const int64_t beside = parts_.lookups.Bytes(samples.tokens);
  while (const std::optional<int64_t> size = governor_.NextProbe()) {
    meter_.Trim();
    ASSIGN_OR_RETURN(const MemoryMeter::Reading before, meter_.Read());
    meter_.Restart();
    const absl::Status status = ProbePass(*size);
    if (absl::IsResourceExhausted(status) && *size > spec_.batch().min_micro_batch()) {
      governor_.Failed(*size);
      continue;
    }
    RETURN_IF_ERROR(WithMemoryAdvice(status));
    ASSIGN_OR_RETURN(MemoryMeter::Reading after, meter_.Read());
    after.peak += beside;
    if (after.peak > governor_.limit_bytes()) {
      RETURN_IF_ERROR(WithMemoryAdvice(absl::ResourceExhaustedError(
          absl::StrFormat("a pass of %d sequences takes %.3f GB, more than %s", *size,
                          static_cast<double>(after.peak) / 1e9, limit_source_))));
    }
    governor_.Probed(*size, before.now, after.peak);
  }
  replica_.parameters().ZeroGradients();
  meter_.Trim();
  const int64_t peak = governor_.Predicted(governor_.micro_batch()).value_or(0);
  LogInfo(absl::StrFormat("passes of %d sequences, %.0f MB at most: %s (%s)",
                          governor_.micro_batch(), static_cast<double>(peak) / 1e6,
                          governor_.reason(), limit_source_));
  accounts_.Book(Account::kCompute);
  return absl::OkStatus();
}

absl::Status Trainer::ProbePass(int64_t size) {
  const Decoder& decoder = replica_.decoder();
  return CatchTorch("measuring a forward and backward pass", [&] {
    const torch::Tensor ids =
        torch::zeros({size, spec_.data().sequence_length()},
                     torch::TensorOptions().dtype(torch::kInt64).device(decoder.device()));
    DropoutKeys dropout{.rate = spec_.model().dropout()};
    if (dropout.rate > 0) dropout.of_row = ids.select(1, 0).contiguous();
    const torch::Tensor loss = decoder.LossSum(ids, ids, dropout);
    loss.backward();
    loss.item<double>();  // the device has finished
    parts_.context.progress.Worked();
  });
}

absl::Status Trainer::WithMemoryAdvice(const absl::Status& status) const {
  if (!absl::IsResourceExhausted(status)) return status;
  return absl::ResourceExhaustedError(absl::StrCat(
      status.message(), "; ",
      MemoryAdvice(replica_.config(), spec_, Parameters::ForTraining(replica_.decoder().device()),
                   governor_.limit_bytes())));
}

// What takes the place of the passes of the last step in this one and the next, where the device
// can and a quarter of what they take stays free, for evaluation and for passes of other sizes.
void Trainer::RecordPasses() {
  if (!runner_.CanRecord() || collective_.world_size() > 1 || shard_.size() == 0) return;
  std::vector<int64_t> sizes = PassSizes(shard_.size(), governor_.micro_batch());
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  if (sizes == recording_ || passes_.largest() != sizes.back()) return;
  recording_ = sizes;
  runner_.Forget();
  const absl::StatusOr<MemoryMeter::Reading> reading = meter_.Read();
  if (!reading.ok() || governor_.limit_bytes() == 0) {
    LogInfo("passes go on kernel by kernel: how much memory there is cannot be measured here");
    return;
  }
  const int64_t free = governor_.limit_bytes() - reading->peak;
  const int64_t wanted = (reading->peak - reading->now) / 4;
  if (free < wanted) {
    LogInfo(
        absl::StrFormat("passes go on kernel by kernel: recorded ones need %.0f MB more of "
                        "memory that stays free, and there are %.0f",
                        static_cast<double>(wanted) / 1e6, static_cast<double>(free) / 1e6));
    return;
  }
  const absl::Status status =
      runner_.Record(sizes, spec_.data().sequence_length(), spec_.model().dropout());
  if (!status.ok()) {
    LogWarning(absl::StrCat("passes go on kernel by kernel: ", status.message()));
    return;
  }
  LogInfo(absl::StrFormat("passes of %d sequences are recorded and launched at once, %.0f MB",
                          sizes.back(), static_cast<double>(runner_.recorded_bytes()) / 1e6));
}

// All that is not needed for the state of the run.
void Trainer::FreeMemory() {
  runner_.Forget();
  recording_.clear();
  meter_.Trim();
}

// After the passes, while gradients are under way.
void Trainer::TrimIfDue() {
  trimmed_bytes_ = 0;
  trim_seconds_ = 0;
  const int64_t every = spec_.batch().trim_every_steps(), step = replica_.step().value() + 1;
  if (every == 0 || step % every != 0) return;
  const absl::Duration begin = parts_.context.clock.Monotonic();
  const absl::StatusOr<ProcessMemory> before = ReadProcessMemory();
  meter_.Trim();
  const absl::StatusOr<ProcessMemory> after = ReadProcessMemory();
  if (before.ok() && after.ok()) {
    trimmed_bytes_ = std::max<int64_t>(0, before->now_bytes - after->now_bytes);
  }
  trim_seconds_ = absl::ToDoubleSeconds(parts_.context.clock.Monotonic() - begin);
}

void Trainer::ReportMemory(v1::StepReport& report) {
  if (const absl::StatusOr<ProcessMemory> memory = ReadProcessMemory(); memory.ok()) {
    report.set_memory_bytes(memory->now_bytes);
    report.set_memory_peak_bytes(memory->peak_bytes);
  }
  report.set_micro_batch(static_cast<int32_t>(governor_.micro_batch()));
  report.set_micro_batch_reason(governor_.reason());
  report.set_memory_limit_bytes(governor_.limit_bytes());
  report.set_trimmed_bytes(trimmed_bytes_);
  report.set_trim_seconds(trim_seconds_);
  absl::StatusOr<MemoryMeter::Reading> reading = meter_.Read();
  const int64_t size = passes_.largest();
  if (!reading.ok() || size == 0) return;
  reading->peak += runner_.recorded_bytes();
  report.set_pass_peak_bytes(reading->peak);
  report.set_pass_predicted_bytes(governor_.Predicted(size).value_or(0));
  const bool recorded = runner_.recorded_bytes() > 0;  // in whole blocks, and kept on purpose
  if (!recorded && governor_.KeptByAllocators(size, reading->peak)) meter_.Trim();
  if (!governor_.Observe({.size = size, .peak = reading->peak, .pressure = meter_.Pressure()})) {
    return;
  }
  LogInfo(absl::StrCat("passes of ", governor_.micro_batch(),
                       " sequences from now on: ", governor_.reason()));
  FreeMemory();
}

}  // namespace espalier
