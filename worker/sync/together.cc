#include "worker/sync/together.h"

#include <algorithm>
#include <array>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"

namespace espalier {
namespace {

// Pause between two signs of life: short at first, since much of such work takes milliseconds and
// every start of a generation goes through several of these.
constexpr absl::Duration kFirstTouch = absl::Milliseconds(1);
constexpr absl::Duration kTouchInterval = absl::Milliseconds(100);

struct Report {
  int32_t done = 0;
  int32_t code = 0;
  int32_t stalled = 0;
  std::array<char, 1012> message{};
};

Report ReportOf(const absl::Status& status) {
  Report report;
  report.done = 1;
  report.code = static_cast<int32_t>(status.code());
  const size_t size = std::min(status.message().size(), report.message.size());
  std::copy_n(status.message().begin(), size, report.message.begin());
  return report;
}

// Payload of a shared error: the ranks as text, "0,3".
constexpr char kFailedRanks[] = "espalier/failed-ranks";
constexpr char kOfTheirNodes[] = "espalier/of-their-nodes";

absl::Status FirstError(const std::vector<Report>& reports) {
  absl::Status first;
  std::vector<int32_t> ranks;
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    const Report& report = reports[rank];
    const auto code = static_cast<absl::StatusCode>(report.code);
    if (report.code == 0 || (!first.ok() && code != first.code())) continue;
    ranks.push_back(static_cast<int32_t>(rank));
    if (!first.ok()) continue;
    const char* end = std::find(report.message.begin(), report.message.end(), '\0');
    const absl::string_view message(report.message.data(), end - report.message.data());
    first = absl::Status(code, absl::StrCat("rank ", rank, ": ", message));
  }
  return first.ok() ? first : WithFailedRanks(std::move(first), ranks);
}

// DEADLINE_EXCEEDED that names the first rank whose work hangs; OK: none does.
absl::Status FirstStalled(const std::vector<Report>& reports, absl::Duration patience) {
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    if (reports[rank].stalled == 0) continue;
    absl::Status status = absl::DeadlineExceededError(absl::StrCat(
        "rank ", rank, ": work that all ranks wait for has stood still for ",
        absl::FormatDuration(patience), "; does its disk, network share or device still answer?"));
    status.SetPayload(kFailedRanks, absl::Cord(absl::StrCat(rank)));
    return status;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status WithFailedRanks(absl::Status status, const std::vector<int32_t>& ranks) {
  status.SetPayload(kFailedRanks, absl::Cord(absl::StrJoin(ranks, ",")));
  return status;
}

std::vector<int32_t> FailedRanks(const absl::Status& status) {
  std::vector<int32_t> ranks;
  const auto payload = status.GetPayload(kFailedRanks);
  if (!payload) return ranks;
  const std::string text(*payload);
  for (const absl::string_view word : absl::StrSplit(text, ',')) {
    int32_t rank = 0;
    if (absl::SimpleAtoi(word, &rank)) ranks.push_back(rank);
  }
  return ranks;
}

absl::Status OfTheirNodes(absl::Status status) {
  status.SetPayload(kOfTheirNodes, absl::Cord());
  return status;
}

bool IsOfTheirNodes(const absl::Status& status) {
  return status.GetPayload(kOfTheirNodes).has_value();
}

absl::StatusOr<std::optional<SharedOutcome>> LookTogether(const RankContext& context,
                                                          BackgroundWork& work) {
  const bool mine = work.WaitFor(absl::ZeroDuration());
  Report report = mine ? ReportOf(work.result()) : Report{};
  report.stalled = !mine && work.Stalled() > context.patience ? 1 : 0;
  ASSIGN_OR_RETURN(const std::vector<Report> reports, GatherValues(context.collective, report));
  context.progress.collective = context.collective.stats().completed;
  RETURN_IF_ERROR(FirstStalled(reports, context.patience));
  if (std::all_of(reports.begin(), reports.end(), [](const Report& r) { return r.done; })) {
    return SharedOutcome{FirstError(reports)};
  }
  return std::nullopt;
}

absl::StatusOr<SharedOutcome> AwaitTogether(const RankContext& context, BackgroundWork& work) {
  absl::Duration pause = kFirstTouch;  // the same on all ranks, which meet after each
  for (;;) {
    const bool mine = work.WaitFor(pause);
    ASSIGN_OR_RETURN(const std::optional<SharedOutcome> outcome, LookTogether(context, work));
    if (outcome) return *outcome;
    if (mine) context.clock.Sleep(pause);
    pause = std::min(2 * pause, kTouchInterval);
  }
}

absl::StatusOr<SharedOutcome> ShareOutcome(const RankContext& context,
                                           const std::function<absl::Status()>& work) {
  BackgroundWork background(work, context.clock);
  absl::StatusOr<SharedOutcome> outcome = AwaitTogether(context, background);
  background.End(context.patience);
  return outcome;
}

absl::StatusOr<SharedOutcome> ShareStatus(Collective& collective, const absl::Status& mine) {
  ASSIGN_OR_RETURN(const std::vector<Report> reports, GatherValues(collective, ReportOf(mine)));
  return SharedOutcome{FirstError(reports)};
}

absl::Status RunTogether(const RankContext& context, const std::function<absl::Status()>& work) {
  ASSIGN_OR_RETURN(const SharedOutcome outcome, ShareOutcome(context, work));
  return outcome.status;
}

}  // namespace espalier
