// MessageToYaml: a configuration message as YAML text that reads back to an equal message. Used by
// job_file.cc. Pure: any thread.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "google/protobuf/message.h"

namespace espalier {

// Only fields that are set, in the order of the schema.
std::string MessageToYaml(const google::protobuf::Message& message);

// `text` as a YAML scalar: plain where that cannot be misread, otherwise in double quotes.
std::string YamlText(absl::string_view text);

}  // namespace espalier
