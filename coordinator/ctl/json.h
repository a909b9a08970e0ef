// Protos as JSON for `-o json`. The form is part of the interface: see README.md. Used by
// coordinator/ctl. Pure functions: any thread.
#pragma once

#include <google/protobuf/message.h>

#include <nlohmann/json.hpp>
#include <string>

namespace espalier::ctl {

// Keys are the proto's field names in the order of their declaration; 64-bit numbers are numbers;
// not-a-number and infinity are null; enum values lose their prefix ("RUNNING"; in a JobSpec lower
// case, as in a job file). Fields without presence are always there; `optional` ones and messages
// only when set.
nlohmann::ordered_json ToJson(const google::protobuf::Message& message);

// Indented by two spaces, ends with a newline. Text that is not UTF-8 is repaired.
std::string JsonText(const nlohmann::ordered_json& json);
// One line, for streams of documents.
std::string JsonLine(const nlohmann::ordered_json& json);

}  // namespace espalier::ctl
