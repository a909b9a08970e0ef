#include "worker/data/order.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/random.h"

namespace espalier {
namespace {

constexpr uint64_t kSizeMax = uint64_t{1} << 62;
constexpr uint64_t kGroupStream = 0x67726f757073;  // tells the two uses of a seed apart

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
  int64_t first = FirstOfStep(step), last = first + range.end;
  if (options_.whole_epochs) {
    last = std::min(last, (first / options_.samples + 1) * options_.samples);
  }
  first += range.begin;
  for (int64_t index = first; index < last;) {
    const int64_t epoch = index / options_.samples, begin = epoch * options_.samples;
    const int64_t end = std::min(last, begin + options_.samples);
    if (!options_.length) {
      AppendPlaces(epoch, index - begin, end - begin, ids);
      index = end;
      continue;
    }
    const int64_t group = (index - begin) / group_size();
    const std::vector<int64_t> sorted = GroupedByLength(epoch, group);
    const int64_t group_begin = begin + group * group_size();
    const int64_t group_end = std::min(end, group_begin + static_cast<int64_t>(sorted.size()));
    ids.insert(ids.end(), sorted.begin() + (index - group_begin),
               sorted.begin() + (group_end - group_begin));
    index = group_end;
  }
  return ids;
}

void SampleOrder::AppendPlaces(int64_t epoch, int64_t begin, int64_t end,
                               std::vector<int64_t>& ids) const {
  const Permutation permutation({.size = static_cast<uint64_t>(options_.samples),
                                 .seed = options_.seed,
                                 .stream = static_cast<uint64_t>(epoch)});
  for (int64_t place = begin; place < end; ++place) {
    ids.push_back(static_cast<int64_t>(permutation(static_cast<uint64_t>(place))));
  }
}

// The samples of a group of places in the order in which they are used.
std::vector<int64_t> SampleOrder::GroupedByLength(int64_t epoch, int64_t group) const {
  std::vector<int64_t> ids;
  const int64_t begin = group * group_size();
  AppendPlaces(epoch, begin, std::min(begin + group_size(), options_.samples), ids);
  std::vector<std::pair<int64_t, int64_t>> by_length;
  for (const int64_t id : ids) by_length.emplace_back(-options_.length(id), id);
  std::sort(by_length.begin(), by_length.end());
  const auto batch = static_cast<size_t>(options_.global_batch);
  const uint64_t whole = ids.size() / batch;  // what is left of an epoch, the shortest, is its end
  if (whole > 0) {
    const Permutation shuffled(
        {.size = whole,
         .seed = MixBits(options_.seed ^ kGroupStream),
         .stream = MixBits(static_cast<uint64_t>(epoch)) + static_cast<uint64_t>(group)});
    for (uint64_t i = 0; i < whole; ++i) {
      const size_t from = shuffled(i) * batch, to = i * batch;
      for (size_t j = 0; j < batch; ++j) ids[to + j] = by_length[from + j].second;
    }
  }
  for (size_t i = whole * batch; i < ids.size(); ++i) ids[i] = by_length[i].second;
  return ids;
}

std::vector<int64_t> SampleOrder::SamplesOfStep(Step step) const {
  return SamplesOfStep(step, {0, options_.global_batch});
}

int64_t SampleOrder::FirstOfStep(Step step) const {
  if (!options_.whole_epochs) return step.value() * options_.global_batch;
  const int64_t steps = (options_.samples + options_.global_batch - 1) / options_.global_batch;
  return step.value() / steps * options_.samples + step.value() % steps * options_.global_batch;
}

int64_t SampleOrder::EpochOfStep(Step step) const { return FirstOfStep(step) / options_.samples; }

int64_t SampleOrder::UsedInEpoch(Step step) const { return FirstOfStep(step) % options_.samples; }

}  // namespace espalier
