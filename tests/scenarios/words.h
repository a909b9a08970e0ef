// Words: one command line of a scenario, read word by word; and the job specs it describes. Used by
// stage.h. One thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/core/event.h"

namespace espalier::scenarios {

class Words {
 public:
  explicit Words(const std::string& line);

  bool empty() const { return next_ == words_.size(); }
  // The next word; empty at the end.
  std::string Text();
  std::string Rest();
  // "3s", "250ms".
  absl::Duration Duration();
  int64_t Integer();
  double Real();
  StreamId Stream() { return StreamId(Integer()); }
  // "nano-1/2": job and generation.
  GenerationKey Key();
  // "studio=0.5"; without "=", no value.
  struct Setting {
    std::string key;
    std::string value;
    double number = 0;
  };
  Setting NextSetting();
  // "0/2": rank and world size.
  struct Place {
    Rank rank;
    int32_t world_size = 0;
  };
  Place RankOf();
  // "stopped"; "failed" (FAILED_PRECONDITION), "failed:INTERNAL", "failed:INTERNAL@0,2".
  struct Ending {
    espalier::Outcome outcome = espalier::Outcome::kLost;
    absl::StatusCode code = absl::StatusCode::kFailedPrecondition;
    std::vector<Rank> ranks;
    bool of_their_nodes = false;  // "unfit:..."
  };
  Ending Outcome();
  std::vector<int64_t> Integers();

  // INVALID_ARGUMENT when a word could not be read as what was wanted.
  const absl::Status& status() const { return status_; }

 private:
  void Fail(const std::string& word, const std::string& wanted);

  std::vector<std::string> words_;
  size_t next_ = 0;
  absl::Status status_;
};

// A report of a node with the coordinator's own versions.
v1::NodeReport DefaultReport();
// "NAME[=SPEED][,key=value]...": a node which jobs leave when it is unwell; see README.md for the
// keys.
struct NodeSays {
  NodeName name;
  v1::NodeSpec spec;
};
absl::StatusOr<NodeSays> ReadNode(Words& words);
// "key=value ...": what an agent says; see README.md for the keys.
struct AgentSays {
  v1::NodeReport report;
  absl::Duration clock_ahead;
};
absl::StatusOr<AgentSays> ReadAgent(Words& words);

// "WHAT STREAM ...": what a worker reports (reports.cc).
absl::StatusOr<Event> ReadReport(Words& words);

// "NAME key=value ...": see README.md for the keys.
absl::StatusOr<v1::JobSpec> ReadSpec(Words& words);

}  // namespace espalier::scenarios
