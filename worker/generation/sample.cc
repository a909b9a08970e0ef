#include "worker/generation/sample.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"

namespace espalier {
namespace {

absl::Status OutOfRange(absl::string_view what, double seen, absl::string_view allowed) {
  return absl::InvalidArgumentError(absl::StrCat(what, " is ", seen, "; allowed: ", allowed));
}

// Ids of the likeliest that together reach top_p of the total, and their weights, of which at
// least one is left. Those that are too unlikely to be among them, whatever the others, are not
// even sorted.
void KeepNucleus(double top_p, std::vector<int32_t>& ids, std::vector<double>& weights) {
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  const double least = (1 - top_p) * total / static_cast<double>(ids.size());
  std::vector<size_t> order;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (weights[i] >= least) order.push_back(i);
  }
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return weights[a] != weights[b] ? weights[a] > weights[b] : ids[a] < ids[b];
  });
  double sum = 0;
  size_t kept = 0;
  while (kept < order.size() && sum < top_p * total) sum += weights[order[kept++]];
  order.resize(std::max<size_t>(kept, 1));
  std::vector<int32_t> kept_ids;
  std::vector<double> kept_weights;
  for (const size_t i : order) {
    kept_ids.push_back(ids[i]);
    kept_weights.push_back(weights[i]);
  }
  ids = std::move(kept_ids);
  weights = std::move(kept_weights);
}

// Nothing when one is no number, or there is none. In lanes, which the compiler makes vectors of:
// one by one, the logits of a large vocabulary take as long as a layer on an accelerator.
std::optional<float> Largest(absl::Span<const float> logits) {
  constexpr size_t kLanes = 16;
  std::array<float, kLanes> most, sum = {};
  most.fill(-std::numeric_limits<float>::infinity());
  const size_t whole = logits.size() / kLanes * kLanes;
  for (size_t i = 0; i < whole; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const float x = logits[i + lane];
      most[lane] = x > most[lane] ? x : most[lane];
      sum[lane] += x - x;  // stays 0 unless one is no number, or infinite
    }
  }
  float largest = *std::max_element(most.begin(), most.end());
  bool finite = std::all_of(sum.begin(), sum.end(), [](float x) { return x == 0; });
  for (size_t i = whole; i < logits.size(); ++i) {
    largest = std::max(largest, logits[i]);
    finite = finite && std::isfinite(logits[i]);
  }
  const auto is_nan = [](float x) { return std::isnan(x); };
  if (logits.empty() || (!finite && std::any_of(logits.begin(), logits.end(), is_nan))) {
    return std::nullopt;
  }
  return largest;
}

}  // namespace

absl::Status CheckSampleOptions(const SampleOptions& o) {
  if (!(o.temperature >= 0) || !std::isfinite(o.temperature)) {
    return OutOfRange("temperature", o.temperature, "0 (greedy) or more");
  }
  if (o.top_k < 0) return OutOfRange("top_k", static_cast<double>(o.top_k), "0 (all) or more");
  if (!(o.top_p > 0 && o.top_p <= 1)) return OutOfRange("top_p", o.top_p, "(0, 1]");
  if (!(o.min_p >= 0 && o.min_p <= 1)) return OutOfRange("min_p", o.min_p, "[0, 1]");
  // So that logits that are numbers stay numbers.
  if (!(o.repetition_penalty >= 0.01 && o.repetition_penalty <= 100)) {
    return OutOfRange("repetition_penalty", o.repetition_penalty, "[0.01, 100] (1: none)");
  }
  if (!(std::abs(o.presence_penalty) <= 2)) {
    return OutOfRange("presence_penalty", o.presence_penalty, "[-2, 2] (0: none)");
  }
  if (!(std::abs(o.frequency_penalty) <= 2)) {
    return OutOfRange("frequency_penalty", o.frequency_penalty, "[-2, 2] (0: none)");
  }
  return absl::OkStatus();
}

uint64_t SampleSeed(uint64_t seed, uint64_t prompt, uint64_t sample) {
  return SplitMix64(SplitMix64(seed, prompt).Next(), sample).Next();
}

Sampler::Sampler(const SampleOptions& options, uint64_t seed, absl::Span<const int32_t> prompt)
    : options_(options),
      seed_(seed),
      counts_(options.repetition_penalty != 1 || options.presence_penalty != 0 ||
              options.frequency_penalty != 0) {
  if (!counts_) return;
  for (const int32_t id : prompt) answer_[id] = 0;
}

std::optional<int32_t> Sampler::Next(absl::Span<float> logits) {
  if (counts_) Penalise(logits);
  const std::optional<float> most = Largest(logits);
  if (!most || !std::isfinite(*most)) return std::nullopt;
  const auto best =
      static_cast<size_t>(std::find(logits.begin(), logits.end(), *most) - logits.begin());
  const int32_t id =
      options_.temperature == 0 ? static_cast<int32_t>(best) : Draw(logits, logits[best]);
  ++drawn_;
  if (counts_) ++answer_[id];
  return id;
}

std::optional<Sampler::Plain> Sampler::NextPlain() const {
  const bool limited = options_.top_k > 0 || options_.top_p < 1 || options_.min_p > 0;
  if (counts_ || (limited && options_.temperature != 0)) return std::nullopt;
  return Plain{options_.temperature, SplitMix64(seed_, drawn_).Uniform()};
}

void Sampler::Penalise(absl::Span<float> logits) const {
  const auto penalty = static_cast<float>(options_.repetition_penalty);
  for (const auto& [id, count] : answer_) {
    if (id < 0 || static_cast<size_t>(id) >= logits.size()) continue;
    float& logit = logits[static_cast<size_t>(id)];
    logit = logit > 0 ? logit / penalty : logit * penalty;
    if (count == 0) continue;
    logit -= static_cast<float>(options_.presence_penalty + count * options_.frequency_penalty);
  }
}

int32_t Sampler::Draw(absl::Span<const float> logits, float best) {
  ids_.resize(logits.size());
  std::iota(ids_.begin(), ids_.end(), 0);
  if (options_.top_k > 0 && static_cast<size_t>(options_.top_k) < ids_.size()) {
    const auto by_logit = [&](int32_t a, int32_t b) {
      const float of_a = logits[static_cast<size_t>(a)], of_b = logits[static_cast<size_t>(b)];
      return of_a != of_b ? of_a > of_b : a < b;
    };
    std::nth_element(ids_.begin(), ids_.begin() + options_.top_k, ids_.end(), by_logit);
    ids_.resize(static_cast<size_t>(options_.top_k));
    std::sort(ids_.begin(), ids_.end());
  }
  weights_.resize(ids_.size());
  for (size_t i = 0; i < ids_.size(); ++i) {
    const double below = static_cast<double>(logits[static_cast<size_t>(ids_[i])]) - best;
    weights_[i] = std::exp(below / options_.temperature);
  }
  if (options_.top_p < 1) KeepNucleus(options_.top_p, ids_, weights_);
  // By id from here on, whatever the order in which they were chosen.
  std::vector<std::pair<int32_t, double>> left;
  for (size_t i = 0; i < ids_.size(); ++i) {
    if (weights_[i] > 0 && weights_[i] >= options_.min_p) left.emplace_back(ids_[i], weights_[i]);
  }
  if (options_.top_p < 1) std::sort(left.begin(), left.end());
  double total = 0;
  for (const auto& [id, weight] : left) total += weight;
  double rest = SplitMix64(seed_, drawn_).Uniform() * total;
  for (const auto& [id, weight] : left) {
    rest -= weight;
    if (rest < 0) return id;
  }
  return left.back().first;
}

}  // namespace espalier
