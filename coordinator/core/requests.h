// What operators ask of the core: the part of Event that people cause. Each request gets one Reply.
// Used by coordinator/core and tests, through event.h. Plain values: any thread.
#pragma once

#include <string>

#include "common/base/ids.h"
#include "espalier/v1/job.pb.h"

namespace espalier {

// A call of an operator that waits for its Reply.
using RequestId = Number<struct RequestIdTag>;

struct SubmitRequested {
  RequestId request;
  // Makes a repeated submission give the same job; may be empty.
  std::string request_id;
  // Checked against its rules, defaults filled in.
  v1::JobSpec spec;
  std::string yaml;
};
enum class PauseKind { kSoft, kHard };
struct PauseRequested {
  RequestId request;
  JobId job;
  PauseKind kind = PauseKind::kSoft;
};
struct ResumeRequested {
  RequestId request;
  JobId job;
  // Without the state that nodes hold which cannot be had.
  bool from_scratch = false;
};
struct CancelRequested {
  RequestId request;
  JobId job;
  // Write a checkpoint before stopping.
  bool checkpoint = false;
};
struct CheckpointRequested {
  RequestId request;
  JobId job;
};

}  // namespace espalier
