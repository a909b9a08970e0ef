#include "coordinator/service/view.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace espalier {

v1::JobStatus JobView::StatusAt(absl::Duration now) const {
  v1::JobStatus result = status;
  for (size_t i = 0; i < progress_at.size() && i < static_cast<size_t>(result.ranks_size()); ++i) {
    const double silent = std::max(0.0, absl::ToDoubleSeconds(now - progress_at[i]));
    result.mutable_ranks(static_cast<int>(i))->set_silent_seconds(silent);
  }
  return result;
}

absl::StatusOr<JobId> View::Resolve(absl::string_view text) const {
  const JobId exact(text);
  if (jobs.count(exact) > 0) return exact;
  std::vector<std::string> matches, named;
  for (const auto& [id, job] : jobs) {
    const bool by_id = !text.empty() && absl::StartsWith(id.text(), text);
    const bool by_name = job->status.name() == text;
    if (by_name) named.push_back(id.text());
    if (by_id || by_name) matches.push_back(id.text());
  }
  if (named.size() == 1) return JobId(named[0]);
  if (matches.size() == 1) return JobId(matches[0]);
  if (matches.empty()) {
    return absl::NotFoundError(absl::StrCat("there is no job '", text, "'; see `espalier jobs`"));
  }
  return absl::InvalidArgumentError(absl::StrCat("'", text, "' may mean any of the jobs ",
                                                 absl::StrJoin(matches, ", "), "; give the id"));
}

void ViewBoard::Publish(std::shared_ptr<const View> view) {
  absl::MutexLock lock(&mutex_);
  view_.swap(view);
}

std::shared_ptr<const View> ViewBoard::Current() const {
  absl::MutexLock lock(&mutex_);
  return view_;
}

}  // namespace espalier
