// Log lines on standard error: UTC time, level, "[rank 2]" where a prefix is set, text. Each line
// is written and flushed in one piece, so that processes may share a file. Used by coordinator/ and
// worker/; tests of pure code need none. Thread-safe. There is no level that ends the program:
// return a status, or use ESPALIER_CHECK.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace espalier {

enum class LogLevel {
  kDebug,    // what a developer follows
  kInfo,     // what an operator follows
  kWarning,  // something an operator may have to mend later
  kError,    // something failed
  kNothing,  // above all that is written: as a limit, nothing is shown
};

// Writes a message of one or more lines; each becomes a log line of its own. Bytes that could
// confuse a terminal (control characters other than the tab) are written as \xNN.
void Log(LogLevel level, absl::string_view message);

inline void LogDebug(absl::string_view message) { Log(LogLevel::kDebug, message); }
inline void LogInfo(absl::string_view message) { Log(LogLevel::kInfo, message); }
inline void LogWarning(absl::string_view message) { Log(LogLevel::kWarning, message); }
inline void LogError(absl::string_view message) { Log(LogLevel::kError, message); }

// Lines below this level are dropped; kInfo at the start.
void SetLogLevel(LogLevel level);

// "debug", "info", "warning" or "error".
absl::StatusOr<LogLevel> ParseLogLevel(absl::string_view text);

// Shown as "[prefix] " in every line from now on ("rank 2"); empty: none. Call it while the program
// has one thread.
void SetLogPrefix(absl::string_view prefix);

}  // namespace espalier
