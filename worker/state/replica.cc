#include "worker/state/replica.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "common/base/random.h"
#include "common/base/status_macros.h"
#include "common/config/recompute.h"
#include "common/observe/log.h"
#include "worker/model/device.h"
#include "worker/tensor/torch_compat.h"

namespace espalier {
namespace {

// Bytes hashed on their own; part of the result.
constexpr int64_t kHashBlock = 1 << 18;

uint64_t HashBlock(const std::byte* bytes, int64_t n, uint64_t seed) {
  constexpr int64_t kWord = sizeof(uint64_t);
  uint64_t hash = MixBits(seed + 1);
  for (int64_t i = 0; i < n; i += kWord) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + i, static_cast<size_t>(std::min(kWord, n - i)));
    hash = MixBits(hash ^ word) + 0x9e3779b97f4a7c15ULL;
  }
  return hash;
}

uint64_t HashTensor(const torch::Tensor& tensor) {
  const torch::Tensor host = tensor.cpu();
  const auto* data = static_cast<const std::byte*>(host.data_ptr());
  const auto size = static_cast<int64_t>(host.nbytes());
  const int64_t blocks = (size + kHashBlock - 1) / kHashBlock;
  std::vector<uint64_t> hashes(blocks);
  at::parallel_for(0, blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      hashes[i] = HashBlock(data + i * kHashBlock, std::min(kHashBlock, size - i * kHashBlock), i);
    }
  });
  uint64_t hash = 0;
  for (const uint64_t part : hashes) hash = MixBits(hash ^ part);
  return hash;
}

}  // namespace

Replica::Replica(const DecoderConfig& config, std::unique_ptr<Parameters> parameters,
                 AdamW optimizer)
    : parameters_(std::move(parameters)),
      decoder_(config, *parameters_),
      optimizer_(std::move(optimizer)) {}

absl::StatusOr<std::unique_ptr<Replica>> Replica::Create(const DecoderConfig& config,
                                                         const v1::TrainSpec& train,
                                                         torch::Device device) {
  ASSIGN_OR_RETURN(std::vector<bool> recompute, RecomputedLayers(train, config.layers));
  ASSIGN_OR_RETURN(const torch::ScalarType type, ComputeType(train.precision(), device));
  if (!device.is_cpu() || type != torch::kFloat) {  // what is compared with
    ASSIGN_OR_RETURN(const double difference, SelfTest(device, type));
    LogInfo(
        absl::StrFormat("self-test: gradients on %s in %s differ by %.1e of their norm from fp32 "
                        "on the CPU",
                        device.str(), PrecisionName(type), difference));
  }
  AllowTf32(train.allow_tf32());
  const auto gradients = Parameters::ForTraining(device);
  ASSIGN_OR_RETURN(Parameters parameters, Parameters::Create(config, device, gradients, type));
  auto owned = std::make_unique<Parameters>(std::move(parameters));
  ASSIGN_OR_RETURN(AdamW adamw, AdamW::Create(train.optimizer(), *owned));
  auto replica = std::unique_ptr<Replica>(new Replica(config, std::move(owned), std::move(adamw)));
  replica->decoder().set_recompute(std::move(recompute));
  return replica;
}

std::vector<torch::Tensor> Replica::Buffers() {
  std::vector<torch::Tensor> buffers = optimizer_.moments().Buffers();
  buffers.insert(buffers.begin(), parameters_->flat());
  return buffers;
}

uint64_t Replica::Fingerprint() {
  uint64_t hash = MixBits(static_cast<uint64_t>(counters_.step)) ^
                  MixBits(static_cast<uint64_t>(counters_.updates) + (uint64_t{1} << 40));
  for (const torch::Tensor& buffer : Buffers()) hash = MixBits(hash ^ HashTensor(buffer));
  if (residual_.kept() && residual_.gathered()) {
    hash = MixBits(hash ^ HashTensor(residual_.values()));
  }
  return hash;
}

}  // namespace espalier
