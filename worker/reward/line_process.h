// LineProcess: a program of the user's, spoken with in lines over its standard input and output.
// What it writes to standard error goes to the log. Nothing waits but End and the destructor. Used
// by external_verifier.cc. One thread.
#pragma once

#include <poll.h>

#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/platform/process.h"

namespace espalier {

class LineProcess {
 public:
  struct Options {
    std::vector<std::string> command;  // a program, by path or by name in PATH, and its arguments
    std::string folder;                // where it runs; empty: where this process does
    std::string name;                  // before its lines in the log
  };
  // In a process group of its own. NOT_FOUND: there is no such program.
  static absl::StatusOr<LineProcess> Start(const Options& options);
  LineProcess(LineProcess&& other) noexcept;
  LineProcess& operator=(LineProcess&& other) noexcept;
  ~LineProcess();

  // Appends a line to what it is to read; Move writes.
  void Send(absl::string_view line);
  // What to wait for before Move has something to do; an end without lines may not show there.
  void AppendWaits(std::vector<pollfd>& waits) const;
  // Moves as many bytes as go without waiting. RESOURCE_EXHAUSTED: a line of it is longer than
  // 1 MiB.
  absl::Status Move();
  // The next whole line that it wrote, without its line break.
  std::optional<std::string> TakeLine();

  // It has ended, or closed its output: beyond the lines that are there none will come.
  bool ended() const { return ended_; }
  // How it ended, with the last lines of its standard error: "it ended with exit code 1; it said:
  // ...". After End.
  std::string Ending() const;

  // The end of its input, by which a sound program ends.
  void CloseInput();
  // Ends it with all of its group: closes its input, and kills what is left after `grace`.
  void End(absl::Duration grace);

 private:
  LineProcess() = default;
  void Write();
  absl::Status ReadOutput();
  void ReadErrors();
  void LogErrors(bool all);

  std::string name_;
  int64_t pid_ = -1;  // -1: ended and reaped
  int input_ = -1;
  int output_ = -1;
  int errors_ = -1;
  std::string unsent_;
  std::string received_;
  std::string unlogged_;
  std::deque<std::string> last_words_;
  std::optional<ExitStatus> exit_;
  bool ended_ = false;
};

}  // namespace espalier
