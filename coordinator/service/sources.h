// What Watch and Logs write: sources of messages over the published views and the log files.
// Thread rule: one thread at a time.
#pragma once

#include <memory>
#include <string>

#include "coordinator/service/log_reader.h"
#include "coordinator/service/pumped_writer.h"
#include "coordinator/service/view.h"
#include "espalier/v1/operator.pb.h"

namespace espalier {

// A job's status whenever it changed, at most ten times a second, and once a second while ranks
// are there (how long each has been silent changes by itself); ends after a final one.
std::unique_ptr<MessageSource<v1::WatchResponse>> MakeWatchSource(const ViewBoard& board,
                                                                  const JobId& job);

struct LogsOptions {
  // jobs/ID/logs.
  std::string folder;
  LogSelection selection;
  // Wait for more until the job is final.
  enum class At { kEndOfFile, kEndOfJob } stop = At::kEndOfFile;
};
std::unique_ptr<MessageSource<v1::LogsResponse>> MakeLogsSource(const ViewBoard& board,
                                                                const JobId& job,
                                                                LogsOptions options);

}  // namespace espalier
