// What Watch and Logs write: sources of messages over the published views and the log files. Used
// by operator_service.cc and pumped_writer.h. Thread rule: one thread at a time.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/service/log_reader.h"
#include "coordinator/service/view.h"
#include "espalier/v1/operator.pb.h"

namespace espalier {

template <typename Message>
struct NextMessage {
  // Absent: nothing now.
  std::optional<Message> message;
  // Set: the stream ends after the message.
  std::optional<absl::Status> end;
};

template <typename Message>
class MessageSource {
 public:
  virtual ~MessageSource() = default;
  // `now` is monotonic. Not called again after an end.
  virtual NextMessage<Message> Next(absl::Duration now) = 0;
};

// A job's status whenever it changed, at most ten times a second, and once a second while ranks
// are there (how long each has been silent changes by itself); ends after a final one.
std::unique_ptr<MessageSource<v1::WatchResponse>> MakeWatchSource(const ViewBoard& board,
                                                                  const JobId& job);

struct LogsOptions {
  // jobs/ID/logs.
  std::string folder;
  LogSelection selection;
  LogPlace from;
  // Wait for more until the job is final.
  enum class At { kEndOfFile, kEndOfJob } stop = At::kEndOfFile;
};
// NOT_FOUND, with what there is, when the job has no such rank or no log of such a generation.
absl::Status CheckLogs(const JobView& job, const LogsOptions& options);
std::unique_ptr<MessageSource<v1::LogsResponse>> MakeLogsSource(const ViewBoard& board,
                                                                const JobId& job,
                                                                LogsOptions options);

}  // namespace espalier
