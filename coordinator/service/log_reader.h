// LogReader: the logs of a job's generations as one text, oldest first, as far as they have been
// written. Used by sources.h for streaming logs to operators. Thread rule: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "common/base/ids.h"

namespace espalier {

struct LogSelection {
  // Only lines that carry "[rank N]".
  std::optional<Rank> rank;
  // Only this generation; absent: all, in order.
  std::optional<Generation> generation;
};

// The paths of the logs in the folder, by generation.
std::map<int64_t, std::string> GenerationLogs(const std::string& folder);

// Between two lines of a generation's log, so many bytes after its beginning. Generation 0: before
// everything.
struct LogPlace {
  Generation generation;
  int64_t offset = 0;
};

class LogReader {
 public:
  // `folder` holds gen-0001.log and so on; it and they may not exist yet.
  LogReader(std::string folder, LogSelection selection, LogPlace from = {});

  // The next whole lines, about `most_bytes` of them; empty: nothing new now, or, unless at_end(),
  // only lines that are not wanted so far: ask again. A line that is not finished is kept until it
  // is, or until a later generation has begun, or it is 64 KiB long. After a log was shortened
  // (log_limit.h) reading goes on with what is left of it.
  std::string Next(size_t most_bytes);
  // After the lines that Next gave or passed over: another reader goes on from there.
  LogPlace place() const {
    return {Generation(generation_), offset_ - static_cast<int64_t>(partial_.size())};
  }
  // The last Next has read all that was there.
  bool at_end() const { return at_end_; }
  // What is left without its line end, for when nothing more will be written.
  std::string Rest();

 private:
  bool OpenNext();
  std::string Filtered(std::string lines) const;

  std::string folder_;
  LogSelection selection_;
  int64_t generation_ = 0;
  std::string path_;
  int64_t offset_ = 0;
  std::string partial_;
  bool at_end_ = false;
};

}  // namespace espalier
