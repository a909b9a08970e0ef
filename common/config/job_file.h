// Job files: YAML -> v1::JobSpec with every default filled in, and back. Used by espalierd,
// espalier and worker/. Functions are pure but for reading the file named: any thread.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "espalier/v1/job.pb.h"

namespace espalier {

struct JobText {
  absl::string_view yaml;
  // Shown in messages before the line number.
  std::string origin = "job";
  // Relative paths in the text are taken from here; absolute.
  std::string folder;
  // KEY.KEY=VALUE, later ones win; relative paths in them are taken from the current folder.
  std::vector<std::string> overrides;
};

// INVALID_ARGUMENT lists up to 20 problems, one a line: "FILE:LINE: PATH is VALUE; allowed: ...".
// What is returned has passed ValidateJobSpec, unless train.epochs is given without train.steps:
// these are absent then, and ResolveEpochs (epochs.h) sets them.
absl::StatusOr<v1::JobSpec> LoadJobText(const JobText& text);

// Also NOT_FOUND and the like when the file cannot be read.
absl::StatusOr<v1::JobSpec> LoadJobFile(const std::string& path,
                                        const std::vector<std::string>& overrides = {});

// Whether a spec can run: the rules of job.proto and those between fields (rules.h). For specs
// that came over the network or out of a journal. A field whose default is not filled in is a
// problem, as is one this version does not know.
absl::Status ValidateJobSpec(const v1::JobSpec& spec);

// Sets what is absent, for specs that were not read from YAML.
void FillJobDefaults(v1::JobSpec& spec);

// Replaces "~" in every path of the spec by the home of the user of this process: for the node that
// is about to open them. INVALID_ARGUMENT and FAILED_PRECONDITION as ExpandHome says.
absl::Status ExpandJobPaths(v1::JobSpec& spec);

// A job file that loads to an equal spec.
std::string JobSpecToYaml(const v1::JobSpec& spec);

// Reference of the job file, one line a key: path, type and range, unit, default.
std::string JobFileReference();

}  // namespace espalier
