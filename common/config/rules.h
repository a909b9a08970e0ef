// What must hold in a configuration: of each value, as rule.proto says, and between the fields of a
// job or a cluster. Used by job_file.cc and cluster_file.cc, in the loader and for specs that came
// over the network, and by coordinator/service and
// coordinator/agent for names. Pure functions: any thread; Problems is
// a plain value.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "espalier/v1/cluster.pb.h"
#include "espalier/v1/job.pb.h"
#include "google/protobuf/message.h"

namespace espalier {

// What is wrong with a configuration, gathered so that a person can mend all of it at once.
class Problems {
 public:
  // `where` may be empty.
  void Add(absl::string_view where, absl::string_view what);
  bool empty() const { return count_ == 0; }

  // OK, or INVALID_ARGUMENT with one problem a line, the first kShownMax of them.
  absl::Status ToStatus() const;

  static constexpr size_t kShownMax = 20;

 private:
  std::vector<std::string> lines_;
  size_t count_ = 0;
};

// Adds a problem for every value that its rule does not allow, every field that is required or has
// a default but is absent, and every field that this version does not know.
void CheckRules(const google::protobuf::Message& message, const std::string& path,
                Problems& problems);

// Adds a problem for every combination that cannot run or that would quietly do less than was
// asked. The defaults of `spec` are filled in and its single values lie within their ranges.
// `where` stands before each message.
void CheckJobRules(const v1::JobSpec& spec, const std::string& where, Problems& problems);

// The part of it that is of tasks that learn from rewards; CheckJobRules calls it.
void CheckRewardRules(const v1::JobSpec& spec, const std::string& where, Problems& problems);
// Makes the sections of the task that may be left out, so that their defaults are filled in.
void AddTaskSections(v1::TrainSpec& train);

// Likewise for a cluster.
void CheckClusterRules(const v1::ClusterSpec& spec, const std::string& where, Problems& problems);
// Of one node; it is called `path` in messages.
void CheckNodeRules(const v1::NodeSpec& node, const std::string& path, const std::string& where,
                    Problems& problems);

// What jobs, nodes and profiles may be called: names become folder names, labels and words of
// command lines.
inline constexpr char kNameRule[] =
    "1 to 64 letters, digits, '-', '_' and '.', the first a letter or digit";
inline constexpr size_t kNameLengthMax = 64;
bool IsName(absl::string_view name);

// Whether this may be the id of a job: a name, '-' and a number.
bool IsJobId(absl::string_view id);

}  // namespace espalier
