// ReferenceOf: the keys of a configuration file as a table, made from the schema. Used by job_file.
// Pure: any thread.
#pragma once

#include <string>

#include "google/protobuf/descriptor.h"

namespace espalier {

// One line a key: "train.steps   a whole number from 1 to 1e12 steps   default 1000".
std::string ReferenceOf(const google::protobuf::Descriptor& type);

}  // namespace espalier
