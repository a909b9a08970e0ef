#include "coordinator/service/refusal_log.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

std::string Times(int64_t count) {
  return count == 1 ? std::string("once") : absl::StrCat(count, " times");
}

}  // namespace

void RefusalLog::Add(const std::string& refusal) {
  const absl::Duration now = clock_.Monotonic();
  absl::MutexLock lock(&mutex_);
  const auto known = said_.find(refusal);
  if (known == said_.end()) {
    MakeRoom();
    said_[refusal] = {.at = now};
    say_(refusal);
    return;
  }
  Said& said = known->second;
  ++said.unsaid;
  if (now - said.at < kInterval) return;
  say_(absl::StrCat(refusal, " (this happened ", Times(said.unsaid), " within the last ",
                    absl::FormatDuration(absl::Floor(now - said.at, absl::Seconds(1))), ")"));
  said = {.at = now};
}

void RefusalLog::MakeRoom() {
  if (said_.size() < kRefusalsMax) return;
  said_.erase(std::min_element(said_.begin(), said_.end(), [](const auto& a, const auto& b) {
    return a.second.at < b.second.at;
  }));
}

}  // namespace espalier
