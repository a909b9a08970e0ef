#include "worker/optimizer/moments.h"

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/kernels/adamw_kernel.h"
#include "worker/ops/cuda_ops.h"
#include "worker/tensor/torch_compat.h"

namespace espalier {
namespace {

using torch::Tensor;

int64_t Blocks(int64_t elements) { return (elements + moment8::kBlock - 1) / moment8::kBlock; }

constexpr const char* kPrefixes[] = {Moments::kFirstPrefix, "exp_avg_sq.", "exp_avg_unit.",
                                     "exp_avg_sq_unit."};

std::vector<Moments::Part> EmptyParts(bool in_8_bits, const std::vector<int64_t>& shape,
                                      int64_t blocks) {
  std::vector<Moments::Part> parts = {
      {kPrefixes[0], torch::empty(shape, in_8_bits ? torch::kChar : torch::kFloat)},
      {kPrefixes[1], torch::empty(shape, in_8_bits ? torch::kByte : torch::kFloat)}};
  if (!in_8_bits) return parts;
  for (const int unit : {2, 3}) parts.push_back({kPrefixes[unit], torch::empty({blocks})});
  return parts;
}

Moments8 Pointers(const Tensor& first, const Tensor& second, const Tensor& first_unit,
                  const Tensor& second_unit) {
  return {first.data_ptr<int8_t>(), second.data_ptr<uint8_t>(), first_unit.data_ptr<float>(),
          second_unit.data_ptr<float>()};
}

}  // namespace

int64_t MomentBytes(v1::MomentType type, int64_t elements) {
  if (type != v1::MOMENT_TYPE_INT8) return 2 * elements * static_cast<int64_t>(sizeof(float));
  return 2 * (elements + Blocks(elements) * static_cast<int64_t>(sizeof(float)));
}

absl::StatusOr<Moments> Moments::Create(v1::MomentType type, const Parameters& parameters) {
  Moments moments;
  int64_t blocks = 0;
  for (const Parameter& parameter : parameters.trained()) {
    moments.places_.push_back({parameter.offset, parameter.size, blocks, parameter.shape.shape});
    blocks += Blocks(parameter.size);
  }
  const int64_t elements = parameters.trained_elements();
  torch::Device device = parameters.device();
  const bool in_8_bits = type == v1::MOMENT_TYPE_INT8;
  if (!device.is_cuda() || !cuda::Available()) device = torch::kCPU;
  RETURN_IF_ERROR(CatchTorch(
      absl::StrCat("allocating ", MomentBytes(type, elements), " bytes for AdamW's moments"), [&] {
        const auto on = torch::TensorOptions().device(device);
        const absl::Span<const int64_t> ends = parameters.flat().ends();
        moments.first_ =
            FlatTensor::Zeros(ends, on.dtype(in_8_bits ? torch::kChar : torch::kFloat));
        moments.second_ =
            FlatTensor::Zeros(ends, on.dtype(in_8_bits ? torch::kByte : torch::kFloat));
        if (!in_8_bits) return;
        moments.first_unit_ = torch::zeros({blocks}, on.dtype(torch::kFloat));
        moments.second_unit_ = torch::zeros({blocks}, on.dtype(torch::kFloat));
      }));
  return moments;
}

std::vector<Tensor> Moments::Buffers() const {
  std::vector<Tensor> buffers = first_.arenas();
  buffers.insert(buffers.end(), second_.arenas().begin(), second_.arenas().end());
  if (in_8_bits()) buffers.insert(buffers.end(), {first_unit_, second_unit_});
  return buffers;
}

std::vector<Moments::Part> Moments::PartsOf(size_t parameter) const {
  const Place& place = places_[parameter];
  const auto elements = [&](const FlatTensor& flat) {
    return flat.Slice(place.offset, place.size).view(place.shape);
  };
  std::vector<Part> parts = {{kPrefixes[0], elements(first_)}, {kPrefixes[1], elements(second_)}};
  if (!in_8_bits()) return parts;
  const int64_t blocks = Blocks(place.size);
  parts.push_back({kPrefixes[2], first_unit_.narrow(0, place.first_block, blocks)});
  parts.push_back({kPrefixes[3], second_unit_.narrow(0, place.first_block, blocks)});
  return parts;
}

std::vector<Moments::Part> Moments::PartsOfTheOtherKind(size_t parameter) const {
  const Place& place = places_[parameter];
  return EmptyParts(!in_8_bits(), place.shape, Blocks(place.size));
}

std::vector<Moments::Part> Moments::FromTheOtherKind(const std::vector<Part>& parts) const {
  const Tensor& first = parts[0].values;
  const int64_t size = first.numel();
  std::vector<Part> mine = EmptyParts(in_8_bits(), first.sizes().vec(), Blocks(size));
  const std::vector<Part>& narrow = in_8_bits() ? mine : parts;
  const std::vector<Part>& wide = in_8_bits() ? parts : mine;
  const Moments8 moments =
      Pointers(narrow[0].values, narrow[1].values, narrow[2].values, narrow[3].values);
  float* m = wide[0].values.data_ptr<float>();
  float* v = wide[1].values.data_ptr<float>();
  if (in_8_bits()) {
    cpu::EncodeMoments(m, v, size, moments);
  } else {
    cpu::DecodeMoments(moments, size, m, v);
  }
  return mine;
}

Moments8 Moments::At(size_t parameter, int64_t begin) const {
  const Place& place = places_[parameter];
  const int64_t block = place.first_block + begin / moment8::kBlock;
  const int64_t at = place.offset + begin, size = place.size - begin;
  return Pointers(first_.Slice(at, size), second_.Slice(at, size), first_unit_.narrow(0, block, 1),
                  second_unit_.narrow(0, block, 1));
}

}  // namespace espalier
