#include "worker/train/pass_memory.h"

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
#include "worker/train/layer_progress.h"
#include "worker/train/plan.h"

namespace espalier {
namespace {

double Megabytes(int64_t bytes) { return static_cast<double>(bytes) / 1e6; }

}  // namespace

PassMemory::PassMemory(const Parts& parts, const MemoryGovernor::Options& options, int local_ranks,
                       std::string limit_source)
    : parts_(parts),
      meter_(parts.replica.model().device(), parts.context.clock),
      governor_(options),
      local_ranks_(local_ranks),
      limit_source_(std::move(limit_source)) {}

absl::StatusOr<std::unique_ptr<PassMemory>> PassMemory::Create(const Parts& parts, Limits limits) {
  const v1::BatchSpec& batch = parts.spec.batch();
  const Collective& collective = parts.context.collective;
  ASSIGN_OR_RETURN(std::optional<int64_t> fixed,
                   MicroBatchOf(batch, collective.rank(), collective.world_size()));
  if (parts.spec.train().reproducible()) fixed = 1;
  const MemoryMeter meter(parts.replica.model().device(), parts.context.clock);
  const absl::StatusOr<MemoryLimit> limit =
      meter.Limit(limits.memory_limit_bytes, limits.local_ranks);
  if (!limit.ok() && !fixed) return limit.status();
  const Model& model = parts.replica.model();
  const int64_t length = parts.spec.data().sequence_length();
  const int64_t most = MostSequences(model.config(), length, model.device());
  if (most < fixed.value_or(1)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "a pass of %d sequences of %d positions needs tensors of 4 GiB or more, which MPS does not "
        "take; give batch.micro_batch at most %d, or a shorter data.sequence_length",
        fixed.value_or(1), length, std::max<int64_t>(1, most)));
  }
  const int64_t largest =
      std::min<int64_t>({batch.max_micro_batch(), parts.spec.train().global_batch(), most});
  const MemoryGovernor::Options options{
      .min = fixed.value_or(std::min<int64_t>(batch.min_micro_batch(), largest)),
      .max = fixed.value_or(largest),
      .limit_bytes = limit.ok() ? limit->bytes : 0,
      .target_fraction = batch.target_memory_fraction()};
  return std::unique_ptr<PassMemory>(
      new PassMemory(parts, options, limits.local_ranks, fixed ? "" : limit->source));
}

absl::Status FindPassSize(MemoryGovernor& governor, int64_t smallest, const std::string& limit,
                          const std::function<absl::StatusOr<PassReading>(int64_t size)>& measure) {
  while (const std::optional<int64_t> size = governor.NextProbe()) {
    const absl::StatusOr<PassReading> found = measure(*size);
    absl::Status status = found.status();
    if (found.ok() && found->peak > governor.limit_bytes()) {
      status = absl::ResourceExhaustedError(
          absl::StrFormat("a micro-batch of %d sequences takes %.3f GB, more than %s", *size,
                          static_cast<double>(found->peak) / 1e9, limit));
    }
    if (absl::IsResourceExhausted(status) && *size > smallest) {
      governor.Failed(*size);
      continue;
    }
    RETURN_IF_ERROR(status);
    governor.Probed(*size, found->before, found->peak);
  }
  return absl::OkStatus();
}

absl::Status PassMemory::Probe(int64_t beside) {
  if (!governor_.NextProbe()) return absl::OkStatus();
  const auto measure = [&](int64_t size) -> absl::StatusOr<PassReading> {
    meter_.Trim();
    ASSIGN_OR_RETURN(const MemoryMeter::Reading before, meter_.Read());
    meter_.Restart();
    RETURN_IF_ERROR(ProbePass(size));
    ASSIGN_OR_RETURN(const MemoryMeter::Reading after, meter_.Read());
    return PassReading{before.now, after.peak + beside};
  };
  RETURN_IF_ERROR(WithAdvice(
      FindPassSize(governor_, parts_.spec.batch().min_micro_batch(), limit_source_, measure)));
  RETURN_IF_ERROR(
      CatchTorch("clearing the gradients", [&] { parts_.replica.parameters().ZeroGradients(); }));
  meter_.Trim();
  const int64_t peak = governor_.Predicted(governor_.micro_batch()).value_or(0);
  LogInfo(absl::StrFormat("micro-batches of %d sequences, %.0f MB at most: %s (%s)",
                          governor_.micro_batch(), Megabytes(peak), governor_.reason(),
                          limit_source_));
  return absl::OkStatus();
}

// Where passes look ids up in rows of their own, which take a gradient, so do probes: what lies
// below the first trained layer is kept, and run backward, because of them. Made-up ids are 0.
EmbeddingRows PassMemory::MadeUpRows() const {
  const Parameters& parameters = parts_.replica.parameters();
  if (parameters.embedding() != EmbeddingGradient::kRowsApart) return {};
  torch::NoGradGuard no_grad;
  const torch::Tensor table = parameters.Embedding().leaf;
  torch::Tensor rows = table.narrow(0, 0, 1).clone().set_requires_grad(true);
  rows.mutable_grad() = torch::zeros_like(rows);
  return {rows, torch::zeros({table.size(0)}, table.options().dtype(torch::kInt64))};
}

absl::Status PassMemory::ProbePass(int64_t size) {
  const Model& model = parts_.replica.model();
  return CatchTorch("measuring a forward and backward pass", [&] {
    const TokenBatch batch =
        parts_.task.MadeUpBatch(size, parts_.spec.data().sequence_length(), model.device());
    PassInputs inputs{.dropout = MadeUpDropoutKeys(DropoutRates(parts_.spec), batch),
                      .worked = LayerProgress(parts_.context, model.device())};
    inputs.lookup = MadeUpRows();
    const torch::Tensor loss = parts_.task.LossSum(model, batch, inputs);
    loss.backward();
    loss.item<double>();  // the device has finished
  });
}

absl::Status PassMemory::WithAdvice(const absl::Status& status) const {
  if (!absl::IsResourceExhausted(status)) return status;
  Replica& replica = parts_.replica;
  return absl::ResourceExhaustedError(
      absl::StrCat(status.message(), "; ",
                   MemoryAdvice({.config = replica.config(),
                                 .spec = parts_.spec,
                                 .parameters = replica.parameter_options(),
                                 .ranks = parts_.context.collective.world_size()},
                                governor_.limit_bytes())));
}

int64_t PassMemory::EvaluationRows() const {
  const int64_t most = governor_.micro_batch();
  return largest_ > 0 ? std::min(most, largest_) : most;
}

bool PassMemory::HasRoomToRecord() {
  const absl::StatusOr<MemoryMeter::Reading> reading = meter_.Read();
  if (!reading.ok() || governor_.limit_bytes() == 0) {
    LogInfo("passes go on kernel by kernel: how much memory there is cannot be measured here");
    return false;
  }
  const int64_t free = governor_.limit_bytes() - reading->peak;
  const int64_t wanted = (reading->peak - reading->now) / 4;
  if (free >= wanted) return true;
  LogInfo(
      absl::StrFormat("passes go on kernel by kernel: recorded ones need %.0f MB more of "
                      "memory that stays free, and there are %.0f",
                      Megabytes(wanted), Megabytes(free)));
  return false;
}

void PassMemory::RecordPasses(int64_t rows, int64_t largest) {
  PassRunner& runner = parts_.runner;
  if (!runner.CanRecord() || parts_.context.collective.world_size() > 1 || rows == 0) return;
  std::vector<int64_t> sizes = MicroBatchSizes(rows, governor_.micro_batch());
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  if (sizes == recording_ || largest != sizes.back()) return;
  recording_ = sizes;
  runner.Forget();
  if (!HasRoomToRecord()) return;
  const absl::Status status =
      runner.Record(sizes, parts_.spec.data().sequence_length(), DropoutRates(parts_.spec));
  if (!status.ok()) {
    LogWarning(absl::StrCat("passes go on kernel by kernel: ", status.message()));
    return;
  }
  LogInfo(absl::StrFormat("passes over %d sequences are recorded and launched at once, %.0f MB",
                          sizes.back(), Megabytes(runner.recorded_bytes())));
}

void PassMemory::Free() {
  parts_.runner.Forget();
  recording_.clear();
  meter_.Trim();
}

void PassMemory::TrimIfDue(Step step) {
  trimmed_bytes_ = 0;
  trim_seconds_ = 0;
  const int64_t every = parts_.spec.batch().trim_every_steps();
  if (every == 0 || (step.value() + 1) % every != 0) return;
  Clock& clock = parts_.context.clock;
  const absl::Duration begin = clock.Monotonic();
  const absl::StatusOr<ProcessMemory> before = ReadProcessMemory();
  meter_.Trim();
  const absl::StatusOr<ProcessMemory> after = ReadProcessMemory();
  if (before.ok() && after.ok()) {
    trimmed_bytes_ = std::max<int64_t>(0, before->now_bytes - after->now_bytes);
  }
  trim_seconds_ = absl::ToDoubleSeconds(clock.Monotonic() - begin);
}

absl::StatusOr<MemoryMeter::Reading> PassMemory::ReadPasses() {
  ASSIGN_OR_RETURN(MemoryMeter::Reading reading, meter_.Read());
  if (parts_.replica.model().device().is_cuda()) return reading;  // of the device's own memory
  reading.now -= beside_;
  reading.peak -= beside_;
  return reading;
}

int64_t PassMemory::Room() {
  const absl::StatusOr<MachineMemory> machine = ReadMachineMemory();
  const absl::StatusOr<MemoryMeter::Reading> reading = ReadPasses();
  if (!machine.ok() || !reading.ok()) return 0;
  const bool apart = parts_.replica.model().device().is_cuda();
  const int64_t to_come =
      apart ? 0 : reading->peak - reading->now;  // as the next passes take again
  // A sixteenth stays free: less is called short of memory.
  const int64_t room =
      (machine->available_bytes - machine->limit_bytes / 16) / local_ranks_ - to_come;
  if (apart || governor_.limit_bytes() == 0) return room;
  return std::min(room, governor_.limit_bytes() - reading->peak);
}

void PassMemory::Report(int64_t largest, v1::StepReport& report) {
  if (largest > 0) largest_ = largest;
  if (const absl::StatusOr<ProcessMemory> memory = ReadProcessMemory(); memory.ok()) {
    report.set_memory_bytes(memory->now_bytes);
    report.set_memory_peak_bytes(memory->peak_bytes);
  }
  report.set_micro_batch(static_cast<int32_t>(governor_.micro_batch()));
  report.set_micro_batch_reason(governor_.reason());
  report.set_memory_limit_bytes(governor_.limit_bytes());
  report.set_trimmed_bytes(trimmed_bytes_);
  report.set_trim_seconds(trim_seconds_);
  absl::StatusOr<MemoryMeter::Reading> reading = ReadPasses();
  if (!reading.ok() || largest == 0) return;
  reading->peak += parts_.runner.recorded_bytes();
  report.set_pass_peak_bytes(reading->peak);
  report.set_pass_predicted_bytes(governor_.Predicted(largest).value_or(0));
  const bool recorded = parts_.runner.recorded_bytes() > 0;  // in whole blocks, kept on purpose
  if (!recorded && governor_.KeptByAllocators(largest, reading->peak)) meter_.Trim();
  if (!governor_.Observe({.size = largest, .peak = reading->peak, .pressure = meter_.Pressure()})) {
    return;
  }
  LogInfo(absl::StrCat("micro-batches of ", governor_.micro_batch(),
                       " sequences from now on: ", governor_.reason()));
  Free();
}

}  // namespace espalier
