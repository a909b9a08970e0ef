#include "coordinator/service/sources.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/utf8.h"

namespace espalier {
namespace {

constexpr absl::Duration kWatchAtMostEvery = absl::Milliseconds(100);
constexpr absl::Duration kWatchAtLeastEvery = absl::Seconds(1);
constexpr size_t kLogBytesPerMessage = 65536;
// mpirun writes its last lines after the job is final.
constexpr absl::Duration kLogsAfterEnd = absl::Seconds(2);

std::shared_ptr<const JobView> Find(const ViewBoard& board, const JobId& job) {
  const std::shared_ptr<const View> view = board.Current();
  const auto found = view->jobs.find(job);
  return found == view->jobs.end() ? nullptr : found->second;
}

// A job that waits may still get as many ranks as it asks for.
int64_t RanksOf(const JobView& job) {
  const v1::ParallelSpec& parallel = job.spec->parallel();
  return std::max<int64_t>(
      {static_cast<int64_t>(job.nodes.size()), parallel.min_nodes(), parallel.max_nodes()});
}

class WatchSource : public MessageSource<v1::WatchResponse> {
 public:
  WatchSource(const ViewBoard& board, JobId job) : board_(board), job_(std::move(job)) {}

  NextMessage<v1::WatchResponse> Next(absl::Duration now) override {
    const std::shared_ptr<const JobView> job = Find(board_, job_);
    if (job == nullptr) {
      return {.end = absl::NotFoundError(absl::StrCat("job ", job_.text(), " is gone"))};
    }
    const bool changed = job->revision != revision_;
    const absl::Duration since = now - sent_at_;
    const bool due = !sent_any_ || (changed && since >= kWatchAtMostEvery) ||
                     (job->status.ranks_size() > 0 && since >= kWatchAtLeastEvery) ||
                     (changed && job->is_final());
    if (!due) return {};
    revision_ = job->revision;
    sent_at_ = now;
    sent_any_ = true;
    NextMessage<v1::WatchResponse> next;
    *next.message.emplace().mutable_status() = job->StatusAt(now);
    if (job->is_final()) next.end = absl::OkStatus();
    return next;
  }

 private:
  const ViewBoard& board_;
  const JobId job_;
  int64_t revision_ = 0;
  absl::Duration sent_at_;
  bool sent_any_ = false;
};

class LogsSource : public MessageSource<v1::LogsResponse> {
 public:
  LogsSource(const ViewBoard& board, JobId job, LogsOptions options)
      : board_(board),
        job_(std::move(job)),
        follow_(options.stop == LogsOptions::At::kEndOfJob),
        reader_(std::move(options.folder), options.selection, options.from) {}

  NextMessage<v1::LogsResponse> Next(absl::Duration now) override {
    const bool last_look = !follow_ || Over(now);
    NextMessage<v1::LogsResponse> next;
    std::string text = reader_.Next(kLogBytesPerMessage);
    if (text.empty() && reader_.at_end() && last_look) {
      text = reader_.Rest();
      next.end = absl::OkStatus();
    }
    const bool first = !std::exchange(begun_, true);
    if (text.empty() && !(first && follow_)) return next;
    v1::LogsResponse& message = next.message.emplace();
    message.set_text(AsUtf8(std::move(text)));
    message.set_job_id(job_.text());
    message.mutable_position()->set_generation(reader_.place().generation.value());
    message.mutable_position()->set_offset(reader_.place().offset);
    return next;
  }

 private:
  bool Over(absl::Duration now) const {
    const std::shared_ptr<const JobView> job = Find(board_, job_);
    return job == nullptr || (job->is_final() && now - *job->final_at >= kLogsAfterEnd);
  }

  const ViewBoard& board_;
  const JobId job_;
  const bool follow_;
  LogReader reader_;
  bool begun_ = false;
};

}  // namespace

std::unique_ptr<MessageSource<v1::WatchResponse>> MakeWatchSource(const ViewBoard& board,
                                                                  const JobId& job) {
  return std::make_unique<WatchSource>(board, job);
}

absl::Status CheckLogs(const JobView& job, const LogsOptions& options) {
  const LogSelection& wanted = options.selection;
  const std::string& id = job.status.id();
  const int64_t ranks = RanksOf(job);
  if (wanted.rank && (wanted.rank->value() < 0 || wanted.rank->value() >= ranks)) {
    return absl::NotFoundError(absl::StrCat(
        "job ", id, " has no rank ", wanted.rank->value(), "; it has ",
        ranks == 1 ? "rank 0 alone" : "ranks 0 to ", ranks == 1 ? "" : absl::StrCat(ranks - 1)));
  }
  // The newest may be starting, so that its log is not there yet.
  if (!wanted.generation || wanted.generation->value() == job.status.generation()) {
    return absl::OkStatus();
  }
  const std::map<int64_t, std::string> logs = GenerationLogs(options.folder);
  if (logs.count(wanted.generation->value()) > 0) return absl::OkStatus();
  const auto number = [](std::string* out, const auto& log) { absl::StrAppend(out, log.first); };
  const std::string there =
      logs.empty() ? "it has none" : "there are those of " + absl::StrJoin(logs, ", ", number);
  return absl::NotFoundError(absl::StrCat("job ", id, " has no log of generation ",
                                          wanted.generation->value(), "; ", there));
}

std::unique_ptr<MessageSource<v1::LogsResponse>> MakeLogsSource(const ViewBoard& board,
                                                                const JobId& job,
                                                                LogsOptions options) {
  return std::make_unique<LogsSource>(board, job, std::move(options));
}

}  // namespace espalier
