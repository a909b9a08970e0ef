// The bounds of what generations log: a disk that a chatty job fills would stop the journal, and
// with it every job. Used by mpirun_launcher.h. Any thread; one at a time for a log.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace espalier {

struct LogLimits {
  // Of one generation's log.
  int64_t bytes = 64 << 20;
  // Of all logs of a job: the newest are kept.
  int64_t job_bytes = 256 << 20;
  int files = 200;
};

// 0 where there is none.
int64_t LogBytes(const std::string& path);

// When the log is longer than limits.bytes, its last quarter takes the place of the whole, below a
// line that says so. Its writers go on with it (they append). What they write during the exchange,
// a few milliseconds, is lost.
absl::Status ShortenLog(const std::string& path, const LogLimits& limits);

// Removes the oldest logs of a job's folder (gen-0001.log and so on) beyond the limits.
absl::Status RemoveOldLogs(const std::string& folder, const LogLimits& limits);

}  // namespace espalier
