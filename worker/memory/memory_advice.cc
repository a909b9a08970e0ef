#include "worker/memory/memory_advice.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "worker/model/parameters.h"
#include "worker/ops/fused_ops.h"
#include "worker/optimizer/moments.h"
#include "worker/sync/exact_sums.h"

namespace espalier {
namespace {

constexpr int64_t kFloat = 4;
constexpr int64_t kBillion = 1'000'000'000;

std::string Gigabytes(int64_t bytes) {
  return absl::StrFormat("%.3g GB", static_cast<double>(bytes) / 1e9);
}

// What one layer keeps of one position: its input, queries, keys and values, the attention's
// output, the input of the feed-forward part, and the products of that: two, or one before GELU.
int64_t LayerFloats(const DecoderConfig& config) {
  const int64_t q = config.heads * config.head_dim, kv = config.kv_heads * config.head_dim;
  const int64_t inner = config.architecture == Architecture::kGpt2 ? 1 : 2;
  return 2 * config.hidden_size + 2 * q + 2 * kv + inner * config.intermediate_size;
}

// What the slots of a step keep of a recursive model from one supervision step to the next.
int64_t SlotBytes(const TrainedModel& model) {
  const DecoderConfig& config = model.config;
  if (!config.recursion || config.recursion->halt_max_steps == 1) return 0;
  const int64_t of_slot = 2 * model.spec.data().sequence_length() * config.hidden_size;
  return 2 * model.spec.train().global_batch() * of_slot * kFloat;  // before and after a step
}

}  // namespace

StateBytes StateBytesOf(const TrainedModel& model) {
  const torch::Device device = model.parameters.device;
  const Parameters::Size size = Parameters::SizeOf(model.config, model.parameters);
  const bool int8 = model.spec.parallel().gradient_dtype() == v1::GRADIENT_DTYPE_INT8;
  StateBytes bytes;
  const int64_t moments =
      MomentBytes(model.spec.train().optimizer().moments(), size.trained_elements);
  const bool averages = model.spec.train().ema() > 0;
  const int64_t average = averages ? size.trained_elements * kFloat : 0;
  bytes.on_device = size.bytes + moments + average;
  // What weights that a pass uses many times are given by it (recursive_model.h).
  if (model.config.recursion) bytes.on_device += size.dense_elements * kFloat;
  if (int8) bytes.on_host += size.elements_before_embedding * kFloat;
  bytes.on_host += SlotBytes(model);
  const bool exact = model.spec.train().reproducible();
  if (exact) bytes.on_host += ExactSums::BytesOf(size.dense_elements);
  if (!device.is_cpu() && !model.parameters.values_on_host && (model.ranks > 1 || int8 || exact)) {
    bytes.on_host += size.dense_elements * kFloat;
  }
  if (device.is_cuda()) return bytes;
  const int64_t values_and_sums =
      model.parameters.values_on_host ? (size.trained_elements + size.dense_elements) * kFloat : 0;
  return {.on_device = bytes.on_device + bytes.on_host,
          .on_host = 0,
          .outside_allocator = values_and_sums + moments + average + bytes.on_host};
}

int64_t PassBytes(const DecoderConfig& config, int64_t sequence_length) {
  const int64_t passes = config.recursion ? config.recursion->low_cycles + 1 : 1;
  const int64_t positions = sequence_length * passes * kFloat;
  return positions * (config.layers * LayerFloats(config) + 2 * config.hidden_size) +
         fused_ops::LogitRows(sequence_length, config.vocab_size) * config.vocab_size * kFloat;
}

int64_t MostSequences(const DecoderConfig& config, int64_t sequence_length, torch::Device device) {
  if (!device.is_mps()) return std::numeric_limits<int64_t>::max();
  const int64_t query = config.heads * config.head_dim;
  const bool joined = config.architecture != Architecture::kLlama;
  const int64_t inner = (config.recursion ? 2 : 1) * config.intermediate_size;
  const int64_t widest = std::max({config.hidden_size, inner, joined ? 3 * query : query});
  return ((int64_t{1} << 32) - 1) / (sequence_length * widest * kFloat);
}

std::string MemoryAdvice(const TrainedModel& model, int64_t limit_bytes) {
  const DecoderConfig& config = model.config;
  const int64_t length = model.spec.data().sequence_length();
  const v1::MomentType moments = model.spec.train().optimizer().moments();
  const int64_t state = StateBytesOf(model).on_device, pass = PassBytes(config, length);
  std::vector<std::string> ways;
  if (pass > state / 50) {
    ways.push_back(absl::StrCat("data.sequence_length ", length / 2, " (about ",
                                Gigabytes(pass - PassBytes(config, length / 2)), " less)"));
  }
  if (moments != v1::MOMENT_TYPE_INT8) {
    const int64_t trained = Parameters::SizeOf(config, model.parameters).trained_elements;
    const int64_t less = MomentBytes(moments, trained) - MomentBytes(v1::MOMENT_TYPE_INT8, trained);
    ways.push_back(
        absl::StrCat("train.optimizer.moments: int8 (about ", Gigabytes(less), " less)"));
  }
  const int64_t per_layer = length * kFloat * LayerFloats(config);
  const int64_t kept = length * kFloat * config.hidden_size;
  if (config.layers > 1) {
    ways.push_back(absl::StrCat("train.recompute: all (about ",
                                Gigabytes((config.layers - 1) * (per_layer - kept)),
                                " less, a third more time)"));
  }
  ways.push_back(absl::StrCat("a smaller model (",
                              Gigabytes(2 * kFloat * kBillion + MomentBytes(moments, kBillion)),
                              " for 1e9 parameters)"));
  ways.push_back("a machine with more memory");
  return absl::StrCat("parameters, gradients and optimizer take ", Gigabytes(state),
                      ", a pass of one sequence of ", length, " tokens about ", Gigabytes(pass),
                      ", and the limit is ", Gigabytes(limit_bytes),
                      "; to need less: ", absl::StrJoin(ways, ", "));
}

}  // namespace espalier
