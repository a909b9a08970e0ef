#include "worker/data/order.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/random.h"

namespace espalier {
namespace {

constexpr uint64_t kSizeMax = uint64_t{1} << 62;

}  // namespace

Permutation::Permutation(Options options) : size_(options.size) {
  ESPALIER_CHECK(size_ >= 1 && size_ <= kSizeMax, "a permutation needs a size of 1 to 2^62");
  // Halves of at least 2 bits: with 1-bit halves a Feistel network reaches few permutations.
  half_bits_ = std::max(2, (static_cast<int>(std::bit_width(size_ - 1)) + 1) / 2);
  SplitMix64 keys(options.seed, options.stream);
  for (uint64_t& key : keys_) key = keys.Next();
}

uint64_t Permutation::Encrypt(uint64_t value) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t left = value >> half_bits_;
  uint64_t right = value & mask;
  for (uint64_t key : keys_) {
    const uint64_t next = left ^ (MixBits(right + key) & mask);
    left = right;
    right = next;
  }
  return left << half_bits_ | right;
}

uint64_t Permutation::operator()(uint64_t index) const {
  ESPALIER_CHECK(index < size_, "index outside the permutation");
  do {
    index = Encrypt(index);
  } while (index >= size_);
  return index;
}

absl::StatusOr<std::vector<SlotRange>> SlotsOfRanks(absl::Span<const int64_t> sequences_per_rank,
                                                    int64_t global_batch) {
  std::vector<SlotRange> ranges;
  int64_t begin = 0;
  for (int64_t sequences : sequences_per_rank) {
    if (sequences < 0 || sequences > global_batch - begin) break;
    ranges.push_back({begin, begin + sequences});
    begin += sequences;
  }
  if (ranges.size() == sequences_per_rank.size() && begin == global_batch) return ranges;
  return absl::InvalidArgumentError(
      absl::StrCat("shard plan [", absl::StrJoin(sequences_per_rank, ", "),
                   "] does not divide a global batch of ", global_batch,
                   " (no entry may be negative, the sum must be equal)"));
}

absl::StatusOr<SampleOrder> SampleOrder::Create(Options options) {
  if (options.samples < 1 || options.global_batch < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a sample order needs at least 1 sample and a global batch of at least 1, got ",
        options.samples, " samples and a batch of ", options.global_batch));
  }
  return SampleOrder(options);
}

std::vector<int64_t> SampleOrder::SamplesOfStep(Step step, SlotRange range) const {
  ESPALIER_CHECK(0 <= range.begin && range.begin <= range.end && range.end <= options_.global_batch,
                 "slots outside the global batch");
  std::vector<int64_t> ids;
  ids.reserve(static_cast<size_t>(range.size()));
  const int64_t first = step.value() * options_.global_batch + range.begin;
  const int64_t last = first + range.size();
  for (int64_t index = first; index < last;) {
    const int64_t epoch = index / options_.samples;
    const Permutation permutation({.size = static_cast<uint64_t>(options_.samples),
                                   .seed = options_.seed,
                                   .stream = static_cast<uint64_t>(epoch)});
    const int64_t epoch_end = (epoch + 1) * options_.samples;
    for (; index < std::min(last, epoch_end); ++index) {
      const auto place = static_cast<uint64_t>(index - epoch * options_.samples);
      ids.push_back(static_cast<int64_t>(permutation(place)));
    }
  }
  return ids;
}

std::vector<int64_t> SampleOrder::SamplesOfStep(Step step) const {
  return SamplesOfStep(step, {0, options_.global_batch});
}

int64_t SampleOrder::EpochOfStep(Step step) const {
  return step.value() * options_.global_batch / options_.samples;
}

}  // namespace espalier
