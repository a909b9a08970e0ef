#include "worker/state/replica.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/glob.h"
#include "common/base/random.h"
#include "common/base/status_macros.h"
#include "common/config/recompute.h"
#include "worker/model/adapter_files.h"
#include "worker/model/recursive_model.h"
#include "worker/tensor/device.h"
#include "worker/tensor/torch_compat.h"

namespace espalier {
namespace {

// Payload of an error.
constexpr char kUnequalReplicas[] = "espalier/unequal-replicas";

// Bytes hashed on their own; part of the result.
constexpr int64_t kHashBlock = 1 << 18;
// Bytes that a device gives to the host at a time for hashing.
constexpr int64_t kHashPiece = 64 * kHashBlock;

constexpr int64_t kWord = sizeof(uint64_t);
// Blocks that a thread hashes side by side: each word waits for the one before it in its block.
constexpr int64_t kLanes = 4;

uint64_t WithWord(uint64_t hash, const std::byte* at, int64_t n) {
  uint64_t word = 0;
  std::memcpy(&word, at, static_cast<size_t>(n));
  return MixBits(hash ^ word) + 0x9e3779b97f4a7c15ULL;
}

uint64_t BlockSeed(int64_t block) { return MixBits(static_cast<uint64_t>(block) + 1); }

uint64_t HashBlock(const std::byte* bytes, int64_t n, int64_t block) {
  uint64_t hash = BlockSeed(block);
  for (int64_t i = 0; i < n; i += kWord) hash = WithWord(hash, bytes + i, std::min(kWord, n - i));
  return hash;
}

// Those of `kLanes` whole blocks from `block` on.
void HashBlocks(const std::byte* bytes, int64_t block, uint64_t* hashes) {
  std::array<uint64_t, kLanes> hash;
  for (int64_t lane = 0; lane < kLanes; ++lane) hash[lane] = BlockSeed(block + lane);
  for (int64_t i = 0; i < kHashBlock; i += kWord) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      hash[lane] = WithWord(hash[lane], bytes + lane * kHashBlock + i, kWord);
    }
  }
  std::copy(hash.begin(), hash.end(), hashes);
}

// Adds the hashes of a piece that is on the host to `hashes`; `first`: its first block.
void HashPiece(const torch::Tensor& host, HashThreads threads, int64_t first,
               std::vector<uint64_t>& hashes) {
  const auto* data = static_cast<const std::byte*>(host.data_ptr());
  const auto size = static_cast<int64_t>(host.nbytes());
  const int64_t blocks = (size + kHashBlock - 1) / kHashBlock;
  hashes.resize(first + blocks);
  const auto hash = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end;) {
      const int64_t at = i * kHashBlock;
      if (i + kLanes <= end && at + kLanes * kHashBlock <= size) {
        HashBlocks(data + at, first + i, &hashes[first + i]);
        i += kLanes;
      } else {
        hashes[first + i] = HashBlock(data + at, std::min(kHashBlock, size - at), first + i);
        ++i;
      }
    }
  };
  if (threads == HashThreads::kOne) return hash(0, blocks);
  at::parallel_for(0, blocks, kLanes, hash);
}

// What is on a device comes to the host in pieces.
uint64_t HashTensor(const torch::Tensor& tensor, HashThreads threads = HashThreads::kAll) {
  const torch::Tensor flat = tensor.detach().reshape({-1});
  const int64_t step = flat.is_cpu() ? std::max<int64_t>(flat.numel(), 1)
                                     : kHashPiece / static_cast<int64_t>(flat.element_size());
  std::vector<uint64_t> hashes;
  for (int64_t begin = 0; begin < flat.numel(); begin += step) {
    const torch::Tensor piece = flat.narrow(0, begin, std::min(step, flat.numel() - begin)).cpu();
    HashPiece(piece, threads, static_cast<int64_t>(hashes.size()), hashes);
  }
  uint64_t hash = 0;
  for (const uint64_t part : hashes) hash = MixBits(hash ^ part);
  return hash;
}

// The parameters that no pattern of train.freeze names are trained.
absl::StatusOr<std::function<bool(const ParameterShape&)>> TrainedOf(const DecoderConfig& config,
                                                                     const v1::TrainSpec& train) {
  const std::vector<std::string> patterns(train.freeze().begin(), train.freeze().end());
  const std::vector<ParameterShape> shapes = ParameterShapes(config);
  for (const std::string& pattern : patterns) {
    const bool found = std::any_of(shapes.begin(), shapes.end(), [&](const ParameterShape& shape) {
      return MatchesGlob(pattern, shape.name);
    });
    if (found) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "train.freeze names '", pattern, "', and the model has no such parameter; names are like ",
        shapes[shapes.size() / 2].name, ", and * stands for any characters"));
  }
  const auto trained = [patterns](const ParameterShape& shape) {
    return std::none_of(patterns.begin(), patterns.end(), [&](const std::string& pattern) {
      return MatchesGlob(pattern, shape.name);
    });
  };
  if (std::none_of(shapes.begin(), shapes.end(), trained)) {
    return absl::InvalidArgumentError(absl::StrCat("train.freeze names all parameters (",
                                                   absl::StrJoin(patterns, ", "),
                                                   "); leave out what is to be trained"));
  }
  return trained;
}

// Those that differ from more than half of all; every rank when none is of so many.
std::vector<int32_t> OddRanks(const std::vector<uint64_t>& prints) {
  std::map<uint64_t, size_t> votes;
  for (const uint64_t print : prints) ++votes[print];
  const auto most = std::max_element(
      votes.begin(), votes.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  const bool majority = most->second * 2 > prints.size();
  std::vector<int32_t> odd;
  for (size_t rank = 0; rank < prints.size(); ++rank) {
    if (!majority || prints[rank] != most->first) odd.push_back(static_cast<int32_t>(rank));
  }
  return odd;
}

}  // namespace

absl::StatusOr<Parameters::Options> ParameterOptions(const DecoderConfig& config,
                                                     const v1::TrainSpec& train,
                                                     torch::Device device) {
  ASSIGN_OR_RETURN(const torch::ScalarType type, ComputeType(train.precision(), device));
  Parameters::Options options = Parameters::ForTraining(device, type);
  ASSIGN_OR_RETURN(options.lora, JobLora(config, train));
  ASSIGN_OR_RETURN(options.trained, TrainedOf(config, train));
  if (options.lora)
    options.trained = [](const ParameterShape& shape) { return shape.is_adapter(); };
  if (!train.reproducible()) return options;
  if (!device.is_cpu()) {
    return absl::FailedPreconditionError(
        absl::StrCat("train.reproducible is true, and on device ", device.str(),
                     " some operations add in an order that differs from run to run; train on the "
                     "processor (launch.device: cpu), or leave it out"));
  }
  options.untied_embedding = EmbeddingGradient::kDense;  // rows apart are sums of many passes
  return options;
}

Replica::Replica(const DecoderConfig& config, const Parameters::Options& options,
                 std::unique_ptr<Parameters> parameters, AdamW optimizer)
    : options_(options),
      parameters_(std::move(parameters)),
      model_(MakeModel(config, *parameters_)),
      optimizer_(std::move(optimizer)),
      slots_(options.device) {}

absl::StatusOr<std::unique_ptr<Replica>> Replica::Create(const DecoderConfig& config,
                                                         const v1::TrainSpec& train,
                                                         torch::Device device,
                                                         const Places& places) {
  ASSIGN_OR_RETURN(std::vector<bool> recompute, RecomputedLayers(train, config.layers));
  ASSIGN_OR_RETURN(Parameters::Options options, ParameterOptions(config, train, device));
  options.arena_elements = places.arena_elements;
  options.values_on_host = options.values_on_host || places.values_on_host;
  AllowTf32(train.allow_tf32());
  ASSIGN_OR_RETURN(Parameters parameters, Parameters::Create(config, options));
  auto owned = std::make_unique<Parameters>(std::move(parameters));
  ASSIGN_OR_RETURN(AdamW adamw, AdamW::Create(train.optimizer(), *owned, train.ema()));
  auto replica =
      std::unique_ptr<Replica>(new Replica(config, options, std::move(owned), std::move(adamw)));
  replica->model().set_recompute(std::move(recompute));
  return replica;
}

absl::Status Replica::PrepareExchange(int ranks, const v1::JobSpec& spec) {
  const bool int8 = spec.parallel().gradient_dtype() == v1::GRADIENT_DTYPE_INT8;
  const bool exact = spec.train().reproducible();
  const FlatTensor& gradient = parameters_->flat_gradient();
  if (exact) {
    const int64_t sequences = spec.train().global_batch();
    RETURN_IF_ERROR(exact_sums_.Keep(
        parameters_->dense_elements(),
        {.addends = sequences, .tokens = sequences * spec.data().sequence_length()}));
  }
  if (int8) RETURN_IF_ERROR(residual_.Keep(parameters_->elements_before_embedding()));
  const bool alone = ranks == 1 && !int8 && !exact;
  const bool has_place = !gradient.defined() || gradient.is_cpu() || parameters_->values_on_host();
  if (has_place || alone) return absl::OkStatus();
  // Zeroed, so that its pages count before the first pass is measured.
  const auto host =
      torch::TensorOptions().dtype(torch::kFloat).pinned_memory(gradient.device().is_cuda());
  return CatchTorch(absl::StrCat("allocating ", gradient.nbytes(),
                                 " bytes of host memory for the exchange of gradients"),
                    [&] { host_gradient_ = FlatTensor::Zeros(gradient.ends(), host); });
}

std::vector<torch::Tensor> Replica::UpdatedBuffers() {
  std::vector<torch::Tensor> buffers = parameters_->flat().arenas();
  const std::vector<torch::Tensor> moments = optimizer_.moments().Buffers();
  buffers.insert(buffers.end(), moments.begin(), moments.end());
  const std::vector<torch::Tensor>& average = optimizer_.average().arenas();
  buffers.insert(buffers.end(), average.begin(), average.end());
  return buffers;
}

absl::StatusOr<std::unique_ptr<Replica::Averaged>> Replica::MakeAveraged() const {
  if (!optimizer_.average().defined()) return nullptr;
  ASSIGN_OR_RETURN(Parameters parameters, parameters_->WithValues(optimizer_.average()));
  auto averaged = std::make_unique<Averaged>(Averaged{std::move(parameters), nullptr});
  averaged->model = MakeModel(config(), averaged->parameters);
  return averaged;
}

std::vector<torch::Tensor> Replica::Buffers() {
  std::vector<torch::Tensor> buffers = UpdatedBuffers();
  const std::vector<torch::Tensor> slots = slots_.Buffers();
  buffers.insert(buffers.end(), slots.begin(), slots.end());
  return buffers;
}

uint64_t Replica::Fingerprint(HashThreads threads, const std::atomic<bool>* cancelled) {
  uint64_t hash = MixBits(static_cast<uint64_t>(counters_.step)) ^
                  MixBits(static_cast<uint64_t>(counters_.updates) + (uint64_t{1} << 40)) ^
                  MixBits(counters_.loss_scale.Fingerprint() + (uint64_t{1} << 41)) ^
                  counters_.validation.Fingerprint();
  std::vector<torch::Tensor> buffers = UpdatedBuffers();
  if (slots_.kept()) {  // the other half is of the step before
    const std::vector<torch::Tensor> kept = slots_.PartsOf(step());
    buffers.insert(buffers.end(), kept.begin(), kept.end());
  }
  for (const torch::Tensor& buffer : buffers) {
    if (cancelled != nullptr && *cancelled) return 0;
    hash = MixBits(hash ^ HashTensor(buffer, threads));
  }
  if (residual_.kept() && residual_.gathered()) {
    hash = MixBits(hash ^ HashTensor(residual_.values(), threads));
  }
  return hash;
}

uint64_t Replica::FrozenFingerprint() {
  if (frozen_fingerprint_) return *frozen_fingerprint_;
  uint64_t hash = 0;
  for (const Parameter& parameter : parameters_->all()) {
    if (!parameter.trained) hash = MixBits(hash ^ HashTensor(parameter.value));
  }
  frozen_fingerprint_ = hash;
  return hash;
}

absl::Status CheckReplicasEqual(const RankContext& context, Replica& replica) {
  if (context.collective.world_size() == 1) return absl::OkStatus();
  uint64_t mine = 0;
  RETURN_IF_ERROR(RunTogether(context, [&] {
    return CatchTorch("hashing the replica", [&] { mine = replica.Fingerprint(); });
  }));
  return CheckFingerprintsEqual(context.collective, mine, replica.step());
}

absl::Status CheckFingerprintsEqual(Collective& collective, uint64_t mine, Step step) {
  ASSIGN_OR_RETURN(const std::vector<uint64_t> all, GatherValues(collective, mine));
  if (std::all_of(all.begin(), all.end(), [&](uint64_t print) { return print == all[0]; })) {
    return absl::OkStatus();
  }
  const std::vector<int32_t> odd = OddRanks(all);
  const bool told = odd.size() < all.size();
  const std::string message = absl::StrCat(
      "the ranks do not hold the same bits any more after step ", step.value(), ": ",
      told ? absl::StrCat("rank ", absl::StrJoin(odd, ", "), " differs from the others")
           : "which one is wrong cannot be told",
      "; no checkpoint is written of it, and what is in memory is not used again");
  absl::Status unequal = told ? absl::InternalError(message) : absl::AbortedError(message);
  unequal.SetPayload(kUnequalReplicas, absl::Cord());
  return told ? WithFailedRanks(std::move(unequal), odd) : unequal;
}

bool IsOfUnequalReplicas(const absl::Status& status) {
  return status.GetPayload(kUnequalReplicas).has_value();
}

}  // namespace espalier
