// CheckJobRules: what must hold between the fields of a job. Used by job_file, in the loader and
// for specs that came over the network. Pure: any thread.
#pragma once

#include <string>

#include "common/config/problems.h"
#include "espalier/v1/job.pb.h"

namespace espalier {

// Adds a problem for every combination that cannot run or that would quietly do less than was
// asked. The defaults of `spec` are filled in and its single values lie within their ranges.
// `where` stands before each message.
void CheckJobRules(const v1::JobSpec& spec, const std::string& where, Problems& problems);

}  // namespace espalier
