#include "worker/memory/memory_governor.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace espalier {
namespace {

constexpr size_t kReadings = 10;     // averaged, and steps between two changes
constexpr double kShrink = 0.8;      // of the size, above the target
constexpr double kGrow = 1.2;        // of the size, below kComfort of the target
constexpr double kComfort = 0.8;     // of the target
constexpr int64_t kReach = 4;        // a probe is at most so many times the largest one before
constexpr double kCloseEnough = 50;  // probing ends within 1/50 of the largest safe size
constexpr size_t kProbesMax = 12;
constexpr int64_t kPartAbove = 50;  // of the prediction: what a pass may take more than that

int64_t Scaled(int64_t size, double factor) {
  return static_cast<int64_t>(std::floor(static_cast<double>(size) * factor));
}

std::string Gigabytes(double bytes) { return absl::StrFormat("%.3g GB", bytes / 1e9); }

}  // namespace

MemoryGovernor::MemoryGovernor(const Options& options)
    : options_(options),
      fixed_(options.min == options.max),
      target_(Scaled(options.limit_bytes, options.target_fraction)),
      micro_batch_(options.min),
      reason_("batch.micro_batch of the job") {
  if (fixed_) return;
  probe_ = options_.min;
  reason_ = "smallest size, not measured yet";
}

bool MemoryGovernor::Fits(int64_t size) const {
  const auto it = probes_.find(size);
  return it != probes_.end() && it->second <= target_;
}

int64_t MemoryGovernor::LargestProbed() const {
  return probes_.empty() ? options_.min : probes_.rbegin()->first;
}

std::optional<int64_t> MemoryGovernor::Predicted(int64_t size) const {
  if (!line_) return std::nullopt;
  return std::llround(line_->base + line_->slope * static_cast<double>(size));
}

bool MemoryGovernor::KeptByAllocators(int64_t size, int64_t peak) const {
  const std::optional<int64_t> predicted = Predicted(size);
  return predicted && peak > *predicted + *predicted / kPartAbove;
}

// Through the two largest probes that tell most: the chosen size lies next to them.
void MemoryGovernor::Fit() {
  if (probes_.size() < 2) return;
  const auto last = std::prev(probes_.end()), before = std::prev(last);
  const auto rise = static_cast<double>(last->second - before->second);
  const auto run = static_cast<double>(last->first - before->first);
  Line line;
  line.slope = std::max(0.0, rise / run);
  line.base = static_cast<double>(last->second) - line.slope * static_cast<double>(last->first);
  line_ = line;
}

// Within the bounds, and below what has failed.
int64_t MemoryGovernor::Ceiling() const {
  return failed_ ? std::min(options_.max, *failed_ - 1) : options_.max;
}

// By the line; without one, nothing larger is known to be safe.
int64_t MemoryGovernor::LargestSafe() const {
  if (!line_) return micro_batch_;
  const double room = static_cast<double>(target_) - line_->base;
  if (line_->slope <= 0) return room < 0 ? options_.min : Ceiling();
  const double fitting = std::clamp(std::floor(room / line_->slope), 0.0, 1e15);
  return std::max(options_.min, std::min(Ceiling(), static_cast<int64_t>(fitting)));
}

void MemoryGovernor::Probed(int64_t size, int64_t before, int64_t peak) {
  probe_.reset();
  probes_[size] = peak;
  Fit();
  if (!line_) {
    Choose(size, absl::StrCat("a micro-batch of ", size, " takes ", Gigabytes(peak), " of ",
                              Gigabytes(options_.limit_bytes)));
    // Twice everything that the pass took is more than one sequence more can take.
    const int64_t next = size + 1;
    const bool safe = peak + (peak - before) <= options_.limit_bytes && peak <= target_;
    if (safe && next <= Ceiling()) probe_ = next;
    return;
  }
  const int64_t safe = LargestSafe();
  const int64_t next = std::min(safe, kReach * LargestProbed());
  int64_t best = options_.min;
  for (const auto& [probed, taken] : probes_) {
    if (taken <= target_) best = std::max(best, probed);
  }
  const bool worth = static_cast<double>(next - best) * kCloseEnough > static_cast<double>(best);
  Choose(best, absl::StrFormat("%s and %s a sequence; aimed at %s, %.2f of the limit",
                               Gigabytes(line_->base), Gigabytes(line_->slope),
                               Gigabytes(static_cast<double>(target_)), options_.target_fraction));
  if (worth && probes_.count(next) == 0 && probes_.size() < kProbesMax) probe_ = next;
}

void MemoryGovernor::Failed(int64_t size) {
  failed_ = failed_ ? std::min(*failed_, size) : size;
  const bool probing = probe_.has_value();
  probe_.reset();
  if (probing && Fits(micro_batch_)) return;  // the largest that was measured to fit stays
  const int64_t half = std::max<int64_t>(1, size / 2);
  options_.min = std::min(options_.min, half);
  Choose(std::min(micro_batch_, half),
         absl::StrCat("a micro-batch of ", size, " ran out of memory"));
}

bool MemoryGovernor::Observe(const Reading& reading) {
  peaks_.push_back(reading.peak);
  if (peaks_.size() > kReadings) peaks_.pop_front();
  if (fixed_ || peaks_.size() < kReadings) return false;
  const double average =
      std::accumulate(peaks_.begin(), peaks_.end(), 0.0) / static_cast<double>(kReadings);
  const auto target = static_cast<double>(target_);
  if (average > target || reading.pressure) {
    if (line_ && average > target) {  // the line was too low
      line_->base =
          std::max(line_->base, average - line_->slope * static_cast<double>(reading.size));
    }
    const int64_t less = std::max(options_.min, Scaled(reading.size, kShrink));
    if (less >= micro_batch_) return false;
    Choose(less,
           absl::StrCat(reading.pressure ? "the system is short of memory; " : "above the target; ",
                        Gigabytes(average), " on average of ", kReadings, " steps"));
    return true;
  }
  // A step whose micro-batches were smaller than allowed says nothing about larger ones.
  if (average >= kComfort * target || reading.size < micro_batch_) return false;
  const int64_t more =
      std::min(LargestSafe(), std::max(micro_batch_ + 1, Scaled(micro_batch_, kGrow)));
  if (more <= micro_batch_) return false;
  Choose(more, absl::StrCat("below ", kComfort, " of the target; ", Gigabytes(average),
                            " on average of ", kReadings, " steps"));
  return true;
}

void MemoryGovernor::Choose(int64_t size, std::string reason) {
  micro_batch_ = size;
  reason_ = std::move(reason);
  peaks_.clear();
}

}  // namespace espalier
