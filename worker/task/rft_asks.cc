#include "worker/task/rft_asks.h"

#include <algorithm>
#include <utility>

namespace espalier {
namespace {

bool Earlier(const RftRow& a, const RftRow& b) { return a.prompt < b.prompt; }

}  // namespace

std::vector<RftAsk> NextAsks(const RftProgress& progress, const RftLimits& limits, int64_t most) {
  std::vector<RftAsk> asks;
  int64_t completions = 0;
  const auto add = [&](const RftAsk& ask) {
    const bool fits = asks.empty() || completions + ask.samples <= most;
    if (!fits) return false;
    asks.push_back(ask);
    completions += ask.samples;
    return true;
  };
  for (const RftPending& one : progress.pending) {
    if (!add({one.prompt, one.made, std::min(one.made, limits.samples - one.made)})) return asks;
  }
  for (int64_t prompt = progress.prompts; prompt < limits.prompts; ++prompt) {
    if (!add({prompt, 0, 1})) break;
  }
  return asks;
}

void TakeUp(const std::vector<RftAsk>& asks, const RftLimits& limits, std::vector<Rollout> all,
            RftProgress& progress) {
  std::vector<RftPending> pending;
  const auto rows_before = static_cast<std::ptrdiff_t>(progress.rows.size());
  auto next = all.begin();
  for (size_t place = 0; place < asks.size(); ++place) {
    const RftAsk& ask = asks[place];
    const auto end = std::find_if(next, all.end(), [&](const Rollout& one) {
      return one.prompt != static_cast<int64_t>(place);
    });
    const auto accepted =
        std::find_if(next, end, [](const Rollout& one) { return one.judgement.accepted(); });
    const int64_t made = ask.first + ask.samples;
    if (accepted != end) {
      progress.rows.push_back({.prompt = ask.prompt,
                               .sample = accepted->sample,
                               .ids = std::move(accepted->ids),
                               .text = std::move(accepted->text)});
    } else if (made < limits.samples) {
      pending.push_back({ask.prompt, made});
    }
    if (ask.first == 0) progress.prompts = ask.prompt + 1;
    next = end;
  }
  // Asks begin with the first of what was pending.
  const auto asked_again =
      std::count_if(asks.begin(), asks.end(), [](const RftAsk& ask) { return ask.first > 0; });
  pending.insert(pending.end(), progress.pending.begin() + asked_again, progress.pending.end());
  std::sort(pending.begin(), pending.end(),
            [](const RftPending& a, const RftPending& b) { return a.prompt < b.prompt; });
  progress.pending = std::move(pending);
  const auto fresh = progress.rows.begin() + rows_before;
  std::sort(fresh, progress.rows.end(), Earlier);
  std::inplace_merge(progress.rows.begin(), fresh, progress.rows.end(), Earlier);
}

}  // namespace espalier
