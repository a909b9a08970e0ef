#include "coordinator/planner/split.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <queue>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

absl::Status CheckBounds(int32_t batch, absl::Span<const Runner> runners) {
  int64_t least = 0;
  int64_t most = 0;
  for (const Runner& runner : runners) {
    least += runner.least;
    most += runner.most;
  }
  if (least > batch) {
    return absl::InvalidArgumentError(
        absl::StrCat("a global batch of ", batch, " sequences cannot be divided among ",
                     runners.size(), " ranks, which need at least ", least,
                     "; raise train.global_batch, or lower parallel.min_nodes and max_nodes"));
  }
  if (most >= batch) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "a global batch of ", batch, " sequences does not fit ", runners.size(),
      " ranks, which have room for ", most, "; lower train.global_batch or take more nodes"));
}

// What a runner gets done by then, within its bounds.
int32_t DoneBy(const Runner& runner, double time) {
  const double done = std::floor((time - runner.time.constant) / runner.time.per_sequence);
  const double bounded = std::min(done, static_cast<double>(runner.most));
  return bounded > runner.least ? static_cast<int32_t>(bounded) : runner.least;
}

int64_t AllDoneBy(absl::Span<const Runner> runners, double time) {
  int64_t done = 0;
  for (const Runner& runner : runners) done += DoneBy(runner, time);
  return done;
}

// A time by which no more than the batch is done, and hardly less: what is handed out one by one
// then goes to the heap.
double NearlyDone(int32_t batch, absl::Span<const Runner> runners) {
  double early = 0;
  double late = 1e-9;
  while (AllDoneBy(runners, late) < batch && late < 1e300) late *= 2;
  for (int i = 0; i < 60; ++i) {
    const double middle = (early + late) / 2;
    (AllDoneBy(runners, middle) <= batch ? early : late) = middle;
  }
  return early;
}

}  // namespace

absl::StatusOr<std::vector<int32_t>> SplitBatch(int32_t batch, absl::Span<const Runner> runners) {
  if (const absl::Status fits = CheckBounds(batch, runners); !fits.ok()) return fits;
  const double time = NearlyDone(batch, runners);
  std::vector<int32_t> sequences;
  int64_t left = batch;
  for (const Runner& runner : runners) left -= sequences.emplace_back(DoneBy(runner, time));
  using Finish = std::pair<double, size_t>;  // with one more, and whose
  std::priority_queue<Finish, std::vector<Finish>, std::greater<>> next;
  const auto offer = [&](size_t i) {
    if (sequences[i] < runners[i].most) next.emplace(runners[i].time.Seconds(sequences[i] + 1), i);
  };
  for (size_t i = 0; i < runners.size(); ++i) offer(i);
  for (; left > 0; --left) {
    const size_t first = next.top().second;
    next.pop();
    ++sequences[first];
    offer(first);
  }
  return sequences;
}

double LatestFinish(absl::Span<const int32_t> sequences, absl::Span<const Runner> runners) {
  double latest = 0;
  for (size_t i = 0; i < runners.size(); ++i) {
    latest = std::max(latest, runners[i].time.Seconds(sequences[i]));
  }
  return latest;
}

double MeanFinish(absl::Span<const int32_t> sequences, absl::Span<const Runner> runners) {
  double sum = 0;
  for (size_t i = 0; i < runners.size(); ++i) sum += runners[i].time.Seconds(sequences[i]);
  return runners.empty() ? 0 : sum / static_cast<double>(runners.size());
}

}  // namespace espalier
