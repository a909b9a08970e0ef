// CheckRules: the rules of rule.proto on a message that did not come from YAML. Used by job_file.
// Pure: any thread.
#pragma once

#include <string>

#include "common/config/problems.h"
#include "google/protobuf/message.h"

namespace espalier {

// Adds a problem for every value that its rule does not allow, every field that is required or has
// a default but is absent, and every field that this version does not know.
void CheckRules(const google::protobuf::Message& message, const std::string& path,
                Problems& problems);

}  // namespace espalier
