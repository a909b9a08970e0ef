#include "worker/model/generate.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/tensor/torch_compat.h"

namespace espalier {

absl::Status CheckGenerateOptions(const GenerateOptions& options) {
  const SampleOptions& sample = options.sample;
  if (options.max_new_tokens < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_new_tokens is ", options.max_new_tokens, "; allowed: 0 or more"));
  }
  if (!(sample.temperature >= 0) || !std::isfinite(sample.temperature)) {
    return absl::InvalidArgumentError(
        absl::StrCat("temperature is ", sample.temperature, "; allowed: 0 (greedy) or more"));
  }
  if (sample.top_k < 0 || !(sample.top_p > 0 && sample.top_p <= 1)) {
    return absl::InvalidArgumentError(absl::StrCat("top_k is ", sample.top_k, " and top_p is ",
                                                   sample.top_p,
                                                   "; allowed: 0 (all) or more, and (0, 1]"));
  }
  return absl::OkStatus();
}

namespace {

absl::Status CheckPrompt(absl::Span<const int32_t> prompt, const DecoderConfig& config,
                         int64_t max_new_tokens) {
  if (prompt.empty()) {
    return absl::InvalidArgumentError(
        "the prompt has no token; start an empty text with the end-of-text id");
  }
  for (const int32_t id : prompt) {
    if (id < 0 || id >= config.vocab_size) {
      return absl::InvalidArgumentError(absl::StrCat(
          "prompt id ", id, " is outside the model's vocabulary of ", config.vocab_size, " ids"));
    }
  }
  const int64_t room = config.max_position_embeddings - static_cast<int64_t>(prompt.size());
  if (max_new_tokens > room) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a prompt of ", prompt.size(), " tokens and ", max_new_tokens, " new ones exceed the ",
        config.max_position_embeddings, " positions of the model; allowed here: at most ",
        std::max<int64_t>(room, 0), " new tokens, or a shorter prompt"));
  }
  return absl::OkStatus();
}

// What is left of the ids, ordered by falling probability, by top_p.
size_t NucleusSize(const std::vector<double>& weights, double top_p) {
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  double sum = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    sum += weights[i];
    if (sum >= top_p * total) return i + 1;
  }
  return weights.size();
}

class Sampler {
 public:
  Sampler(const Decoder& decoder, const GenerateOptions& options)
      : decoder_(decoder), options_(options), random_(options.seed) {}

  absl::StatusOr<std::vector<int32_t>> Run(absl::Span<const int32_t> prompt, torch::Device device) {
    cache_.capacity = static_cast<int64_t>(prompt.size()) + options_.max_new_tokens;
    std::vector<int64_t> next(prompt.begin(), prompt.end());
    std::vector<int32_t> ids;
    const auto& stop = options_.stop_ids;
    while (static_cast<int64_t>(ids.size()) < options_.max_new_tokens) {
      const std::optional<int32_t> id = Step(next, device);
      if (!id) {
        return absl::DataLossError(
            "the model gives values that are not numbers: its weights are damaged, or its training "
            "diverged; take an older checkpoint");
      }
      if (std::find(stop.begin(), stop.end(), *id) != stop.end()) break;
      ids.push_back(*id);
      if (options_.on_token && !options_.on_token(*id)) break;
      next = {*id};
    }
    return ids;
  }

 private:
  // None: the model gives values that are not numbers.
  std::optional<int32_t> Step(const std::vector<int64_t>& next, torch::Device device) {
    const torch::Tensor ids = torch::tensor(next, torch::kLong).unsqueeze(0).to(device);
    const torch::Tensor logits =
        decoder_.NextLogits(ids, cache_)[0].to(torch::kCPU).to(torch::kFloat).contiguous();
    const absl::Span<const float> values(logits.data_ptr<float>(),
                                         static_cast<size_t>(logits.numel()));
    if (std::any_of(values.begin(), values.end(), [](float x) { return std::isnan(x); })) {
      return std::nullopt;
    }
    return SampleToken(values, options_.sample, random_);
  }

  const Decoder& decoder_;
  const GenerateOptions& options_;
  SplitMix64 random_;
  KeyValueCache cache_;
};

}  // namespace

int32_t SampleToken(absl::Span<const float> logits, const SampleOptions& options,
                    SplitMix64& random) {
  const auto best = std::max_element(logits.begin(), logits.end());
  if (options.temperature == 0) return static_cast<int32_t>(best - logits.begin());
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  size_t kept = ids.size();
  if (options.top_k > 0) kept = std::min<size_t>(kept, static_cast<size_t>(options.top_k));
  std::partial_sort(
      ids.begin(), ids.begin() + static_cast<int64_t>(kept), ids.end(),
      [&](int32_t a, int32_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; });
  std::vector<double> weights(kept);
  for (size_t i = 0; i < kept; ++i) {
    weights[i] = std::exp((static_cast<double>(logits[ids[i]]) - *best) / options.temperature);
  }
  weights.resize(NucleusSize(weights, options.top_p));
  double left = random.Uniform() * std::accumulate(weights.begin(), weights.end(), 0.0);
  for (size_t i = 0; i < weights.size(); ++i) {
    left -= weights[i];
    if (left < 0) return ids[i];
  }
  return ids[weights.size() - 1];
}

absl::StatusOr<std::vector<int32_t>> Generate(const Decoder& decoder,
                                              absl::Span<const int32_t> prompt,
                                              const GenerateOptions& options) {
  RETURN_IF_ERROR(CheckGenerateOptions(options));
  RETURN_IF_ERROR(CheckPrompt(prompt, decoder.config(), options.max_new_tokens));
  absl::StatusOr<std::vector<int32_t>> ids;
  RETURN_IF_ERROR(CatchTorch(
      "generating", [&] { ids = Sampler(decoder, options).Run(prompt, decoder.device()); }));
  return ids;
}

}  // namespace espalier
