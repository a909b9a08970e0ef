#include "worker/optimizer/optimizer.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/random.h"
#include "common/base/status_macros.h"
#include "worker/kernels/adamw_kernel.h"
#include "worker/kernels/cpu_rows.h"
#include "worker/ops/cuda_ops.h"
#include "worker/tensor/torch_compat.h"

namespace espalier {
namespace {

// Elements of one block: three or four blocks fit the second-level cache. Part of the result of
// GradientNorm, so it is the same everywhere.
constexpr int64_t kBlock = 1 << 14;
static_assert(kBlock % moment8::kBlock == 0);
// Elements that ApplyOnHost brings to the host at a time.
constexpr int64_t kHostPiece = int64_t{1} << 22;
static_assert(kHostPiece % kBlock == 0);

// base^exponent by squaring: plain products, so the same bits with every mathematical library.
double Power(double base, int64_t exponent) {
  double result = 1;
  for (; exponent > 0; exponent >>= 1, base *= base) {
    if (exponent & 1) result *= base;
  }
  return result;
}

int64_t BlocksOf(int64_t elements) { return (elements + kBlock - 1) / kBlock; }

// Runs body(block, begin, end, lane) for the blocks of [0, size) on all threads; no two at a time
// in one lane, of which there are at most UndoLog::kSlots.
template <typename Body>
void ForBlocks(int64_t size, const Body& body) {
  const int64_t blocks = BlocksOf(size);
  const int64_t lanes = std::min<int64_t>({blocks, at::get_num_threads(), UndoLog::kSlots});
  at::parallel_for(0, lanes, 1, [&](int64_t first, int64_t last) {
    for (int64_t lane = first; lane < last; ++lane) {
      for (int64_t i = lane * blocks / lanes; i < (lane + 1) * blocks / lanes; ++i) {
        body(i, i * kBlock, std::min((i + 1) * kBlock, size), static_cast<int>(lane));
      }
    }
  });
}

// Of a dense fp32 tensor on the CPU.
double SumOfSquares(const torch::Tensor& x) {
  const float* data = x.data_ptr<float>();
  std::vector<double> partial(BlocksOf(x.numel()));
  ForBlocks(x.numel(), [&](int64_t block, int64_t begin, int64_t end, int) {
    partial[block] = cpu::SumOfSquares(data + begin, end - begin);
  });
  double sum = 0;
  for (const double part : partial) sum += part;
  return sum;
}

// Elements [begin, end) of the table's gradient, whose rows are on the host.
std::vector<float> Between(const LookupGradient& lookups, int64_t begin, int64_t end) {
  std::vector<float> dense(end - begin);
  if (lookups.ids.empty()) return dense;
  const int64_t columns = lookups.rows.size(1);
  const float* rows = lookups.rows.data_ptr<float>();
  auto id = std::lower_bound(lookups.ids.begin(), lookups.ids.end(), begin / columns);
  for (; id != lookups.ids.end() && *id * columns < end; ++id) {
    const int64_t from = std::max(begin, *id * columns), to = std::min(end, (*id + 1) * columns);
    const float* row = rows + (id - lookups.ids.begin()) * columns;
    std::copy(row + (from - *id * columns), row + (to - *id * columns),
              dense.begin() + (from - begin));
  }
  return dense;
}

// Moments from the element `from` on, a multiple of a block's.
Moments8 From(const Moments8& moments, int64_t from) {
  const int64_t block = from / moment8::kBlock;
  return {moments.first + from, moments.second + from, moments.first_unit + block,
          moments.second_unit + block};
}

// The same bits as cpu::AverageUpdate: each operation is rounded by itself.
void AverageOnDevice(const torch::Tensor& value, torch::Tensor average, float share) {
  torch::NoGradGuard no_grad;
  for (int64_t begin = 0; begin < average.numel(); begin += kHostPiece) {
    const int64_t size = std::min(kHostPiece, average.numel() - begin);
    torch::Tensor part = average.narrow(0, begin, size);
    part.add_((value.narrow(0, begin, size) - part).mul_(share));
  }
}

}  // namespace

// Of neighbouring elements; one kind or the other.
struct AdamW::PieceOfMoments {
  float* first = nullptr;
  float* second = nullptr;
  Moments8 narrow;
};

// Neighbouring elements on the host.
struct AdamW::Piece {
  float* value = nullptr;
  float* gradient = nullptr;  // null: lookups
  PieceOfMoments moments;
  float* average = nullptr;  // null: none

  // What an update of elements [from, to) changes.
  UndoLog::Block Memory(int64_t from, int64_t to) const {
    const auto part = [from, to](auto* data) {
      using Element = std::remove_pointer_t<decltype(data)>;
      if (data == nullptr) return absl::Span<std::byte>();
      return absl::MakeSpan(reinterpret_cast<std::byte*>(data + from),
                            (to - from) * sizeof(Element));
    };
    if (moments.first != nullptr) {
      return {part(value), part(gradient), part(moments.first), part(moments.second),
              part(average)};
    }
    const Moments8 block = From(moments.narrow, from);
    const auto units = [from, to](float* unit) {
      const int64_t n = (to - from + moment8::kBlock - 1) / moment8::kBlock;
      return absl::MakeSpan(reinterpret_cast<std::byte*>(unit), n * sizeof(float));
    };
    return {part(value),
            part(gradient),
            part(moments.narrow.first),
            part(moments.narrow.second),
            units(block.first_unit),
            units(block.second_unit),
            part(average)};
  }
};
static_assert(5 * kBlock * sizeof(float) <= UndoLog::kSlotBytes);

struct AdamW::Factors {
  double gradient_scale, step_size, second_root, decayed_keep;
  double first_factor = 0;  // AdamWStep's
};

AdamW::AdamW(const v1::OptimizerSpec& spec, Parameters& parameters, Moments moments)
    : spec_(spec), parameters_(&parameters), moments_(std::move(moments)) {
  const absl::Span<const int64_t> arenas = parameters.flat().ends();
  for (size_t i = 0; i < parameters.trained().size(); ++i) {
    const Parameter& parameter = parameters.trained()[i];
    const bool decays = parameter.shape.role != ParameterRole::kState;
    const bool decay = decays && (parameter.shape.decay || spec.decay_all());
    const bool copied = parameter.offset < parameters.flat_copy().numel();
    const bool looked_up = parameter.offset >= parameters.dense_elements();
    const bool new_arena = std::binary_search(arenas.begin(), arenas.end(), parameter.offset);
    if (groups_.empty() || groups_.back().decay != decay || groups_.back().copied != copied ||
        looked_up || new_arena || moments_.in_8_bits()) {
      const int64_t block = blocks();
      groups_.push_back({parameter.offset, parameter.offset, decay, copied, looked_up, i, block});
    }
    groups_.back().end = parameter.offset + parameter.size;
  }
}

int64_t AdamW::blocks() const {
  if (groups_.empty()) return 0;
  return groups_.back().first_block + BlocksOf(groups_.back().end - groups_.back().begin);
}

absl::StatusOr<AdamW> AdamW::Create(const v1::OptimizerSpec& spec, Parameters& parameters,
                                    double ema) {
  ASSIGN_OR_RETURN(Moments moments, Moments::Create(spec.moments(), parameters));
  AdamW made(spec, parameters, std::move(moments));
  if (ema == 0) return made;
  const FlatTensor& values = parameters.flat();
  RETURN_IF_ERROR(
      CatchTorch(absl::StrCat("allocating ", values.nbytes(), " bytes for train.ema"), [&] {
        made.average_ = FlatTensor::Zeros(
            values.ends(), torch::TensorOptions(values.device()).dtype(torch::kFloat));
      }));
  made.average_share_ = static_cast<float>(1 - ema);
  return made;
}

void AdamW::ResetAverage() {
  torch::NoGradGuard no_grad;
  for (size_t i = 0; i < average_.arenas().size(); ++i) {
    torch::Tensor(average_.arenas()[i]).copy_(parameters_->flat().arenas()[i]);
  }
}

AdamW::Factors AdamW::FactorsOf(const Update& update) const {
  Factors factors;
  factors.gradient_scale = update.gradient_scale;
  factors.step_size = update.learning_rate / (1 - Power(spec_.beta1(), updates_));
  factors.second_root = 1 / std::sqrt(1 - Power(spec_.beta2(), updates_));
  factors.decayed_keep = 1 - update.learning_rate * spec_.weight_decay();
  if (spec_.kind() == v1::OPTIMIZER_KIND_ADAM_ATAN2) {
    factors.first_factor = 1;  // step_size corrects the first moment, outside the angle
  }
  return factors;
}

AdamWStep AdamW::StepOf(const Factors& factors, const Group& group) const {
  AdamWStep step;
  step.gradient_scale = static_cast<float>(factors.gradient_scale);
  step.beta1 = static_cast<float>(spec_.beta1());
  step.beta2 = static_cast<float>(spec_.beta2());
  step.step_size = static_cast<float>(factors.step_size);
  step.second_root = static_cast<float>(factors.second_root);
  step.eps = static_cast<float>(spec_.eps());
  step.first_factor = static_cast<float>(factors.first_factor);
  step.keep = group.decay ? static_cast<float>(factors.decayed_keep) : 1.0F;
  return step;
}

void AdamW::Apply(const Update& update) {
  ++updates_;
  const Factors factors = FactorsOf(update);
  if (moments_.device().is_cuda()) {
    ApplyOnCuda(factors);
  } else {
    ApplyOnHost(factors);
  }
}

// Of the numbers with which a group's 8-bit state is rounded from its element `begin` on.
RandomPlace AdamW::RandomOf(const Group& group, int64_t begin) const {
  return {static_cast<uint32_t>(MixBits(static_cast<uint64_t>(updates_))),
          static_cast<uint32_t>(group.begin + begin)};
}

AdamW::PieceOfMoments AdamW::MomentsOf(const Group& group, int64_t begin, int64_t size) const {
  if (moments_.in_8_bits()) {
    return {.narrow = moments_.At(group.first_parameter, begin)};
  }
  const int64_t at = group.begin + begin;
  return {moments_.first().Slice(at, size).data_ptr<float>(),
          moments_.second().Slice(at, size).data_ptr<float>(),
          {}};
}

// Elements [begin, begin + size) of the group: on the CPU in place; elsewhere values and gradients
// come to the moments, and values go back.
void AdamW::ApplyToPiece(const AdamWStep& step, const Group& group, int64_t begin, int64_t size,
                         const LookupGradient& lookups) {
  torch::Tensor values = parameters_->flat().Slice(begin, size);
  const bool here = values.is_cpu();
  const torch::Tensor on_host = values.cpu();
  const torch::Tensor averages =
      average_.defined() ? average_.Slice(begin, size).cpu() : torch::Tensor();
  const torch::Tensor gradients =
      group.looked_up ? torch::Tensor() : parameters_->summed_gradient().Slice(begin, size).cpu();
  // The CPU computes in fp32 and bf16 alone (precision.h).
  auto* copy = here && group.copied && !parameters_->values_on_host()
                   ? static_cast<cpu::Bf16*>(parameters_->flat_copy().Slice(begin, size).data_ptr())
                   : nullptr;
  const int64_t at = begin - group.begin;
  const Piece piece{
      on_host.data_ptr<float>(), group.looked_up ? nullptr : gradients.data_ptr<float>(),
      MomentsOf(group, at, size), averages.defined() ? averages.data_ptr<float>() : nullptr};
  UndoLog* const undo = here ? undo_ : nullptr;
  ForBlocks(size, [&](int64_t i, int64_t from, int64_t to, int lane) {
    const int64_t block = group.first_block + i;
    if (undo != nullptr && undo->IsDone(block)) return;
    std::vector<float> rows;
    if (group.looked_up) rows = Between(lookups, at + from, at + to);
    if (undo != nullptr) undo->Save(lane, block, piece.Memory(from, to));
    float* const value = piece.value + from;
    float* const gradient = group.looked_up ? rows.data() : piece.gradient + from;
    if (moments_.in_8_bits()) {
      cpu::AdamW8Update({value, gradient, From(piece.moments.narrow, from),
                         RandomOf(group, at + from), to - from},
                        step);
    } else {
      cpu::AdamWUpdate(
          {value, gradient, piece.moments.first + from, piece.moments.second + from, to - from},
          step);
    }
    if (piece.average != nullptr) {
      cpu::AverageUpdate(value, piece.average + from, to - from, average_share_);
    }
    if (undo != nullptr) undo->Done(block);
    if (copy != nullptr) cpu::FromFloatRow(value, copy + from, to - from);
  });
  if (here) return;
  values.copy_(on_host);
  if (averages.defined()) average_.Slice(begin, size).copy_(averages);
}

void AdamW::Redo(const Update& update) {
  ESPALIER_CHECK(undo_ != nullptr, "there is a log");
  for (const Group& group : groups_) {
    const int64_t size = group.end - group.begin;
    const Piece piece{
        parameters_->flat().Slice(group.begin, size).data_ptr<float>(),
        group.looked_up ? nullptr
                        : parameters_->summed_gradient().Slice(group.begin, size).data_ptr<float>(),
        MomentsOf(group, 0, size),
        average_.defined() ? average_.Slice(group.begin, size).data_ptr<float>() : nullptr};
    for (int64_t i = 0; i < BlocksOf(size); ++i) {
      undo_->Restore(group.first_block + i,
                     piece.Memory(i * kBlock, std::min((i + 1) * kBlock, size)));
    }
  }
  Apply(update);
}

// The same bits on every device.
void AdamW::ApplyOnHost(const Factors& factors) {
  torch::NoGradGuard no_grad;
  const bool here = parameters_->flat().is_cpu();
  LookupGradient lookups = std::move(parameters_->lookup_gradient());
  parameters_->lookup_gradient() = {};
  if (lookups.rows.defined()) lookups.rows = lookups.rows.cpu();
  for (const Group& group : groups_) {
    const AdamWStep step = StepOf(factors, group);
    const int64_t piece = here ? group.end - group.begin : kHostPiece;
    for (int64_t begin = group.begin; begin < group.end; begin += piece) {
      ApplyToPiece(step, group, begin, std::min(piece, group.end - begin), lookups);
    }
  }
  if (here && !parameters_->values_on_host()) return;
  parameters_->flat_gradient().Zero();
  parameters_->RefreshCopy();
}

void AdamW::ApplyOnCuda(const Factors& factors) {
  for (const Group& group : groups_) {
    ESPALIER_CHECK(!group.looked_up, "on CUDA every parameter has a gradient of its own");
    const AdamWStep step = StepOf(factors, group);
    const auto part = [&](const FlatTensor& flat) {
      return flat.Slice(group.begin, group.end - group.begin);
    };
    const torch::Tensor value = part(parameters_->flat());
    const torch::Tensor gradient = part(parameters_->flat_gradient());
    const torch::Tensor copy = group.copied ? part(parameters_->flat_copy()) : torch::Tensor();
    if (moments_.in_8_bits()) {
      cuda::AdamW8(step, value, gradient, moments_.At(group.first_parameter, 0), RandomOf(group, 0),
                   copy);
    } else {
      cuda::AdamW(step, value, gradient, part(moments_.first()), part(moments_.second()), copy);
    }
    if (average_.defined()) AverageOnDevice(value, part(average_), average_share_);
  }
}

double AdamW::GradientNorm() const {
  const torch::Tensor& rows = parameters_->lookup_gradient().rows;
  double squares = rows.defined() ? SumOfSquares(rows.cpu()) : 0;
  for (const torch::Tensor& arena : parameters_->summed_gradient().arenas()) {
    squares += arena.is_cpu() ? SumOfSquares(arena) : std::pow(arena.norm().item<double>(), 2);
  }
  return std::sqrt(squares);
}

double ClipFactor(double norm, double clip_norm) {
  return clip_norm > 0 && norm > clip_norm ? clip_norm / norm : 1;
}

}  // namespace espalier
