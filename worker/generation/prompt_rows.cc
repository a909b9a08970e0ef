#include "worker/generation/prompt_rows.h"

#include <algorithm>
#include <utility>

namespace espalier {

void PromptRows::Swap(int64_t a, int64_t b) { std::swap(at(a), at(b)); }

int64_t PromptRows::SharedWith(const HeldPrompt& held, absl::Span<const int32_t> prompt) const {
  if (!held.logits.empty() && prompt == absl::MakeConstSpan(held.ids)) {
    return static_cast<int64_t>(prompt.size());
  }
  const size_t most = std::min(held.ids.size(), prompt.size());
  const auto differ =
      std::mismatch(prompt.begin(), prompt.begin() + static_cast<int64_t>(most), held.ids.begin());
  // At least the last position is computed, for its logits.
  const int64_t alike = differ.first - prompt.begin(),
                last = static_cast<int64_t>(prompt.size()) - 1;
  return std::min(alike, last) / part_ * part_;
}

PromptRows::Shared PromptRows::Find(absl::Span<const int32_t> prompt, int64_t first_idle) const {
  Shared best;
  for (int64_t row = 0; row < static_cast<int64_t>(rows_.size()); ++row) {
    const int64_t positions = SharedWith(at(row), prompt);
    const bool idle = row >= first_idle && best.row < first_idle;
    if (positions > best.positions || (positions == best.positions && positions > 0 && idle)) {
      best = {row, positions, positions == static_cast<int64_t>(prompt.size())};
    }
  }
  return best;
}

int64_t PromptRows::RowFor(const Shared& shared, int64_t first_idle, int64_t busy) const {
  const bool idle = shared.row >= first_idle && shared.row != busy;
  const auto held = static_cast<int64_t>(at(shared.row).ids.size());
  if (idle && shared.positions > 0 && shared.positions + part_ > held) return shared.row;
  int64_t oldest = -1;
  for (int64_t row = first_idle; row < static_cast<int64_t>(rows_.size()); ++row) {
    if (row == busy || (idle && shared.positions > 0 && row == shared.row)) continue;
    if (oldest < 0 || at(row).used < at(oldest).used) oldest = row;
  }
  return oldest < 0 ? shared.row : oldest;
}

}  // namespace espalier
