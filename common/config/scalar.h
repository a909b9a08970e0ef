// Sets a field of a message from a YAML value, with the types that YAML has for people: whole
// numbers, numbers, true/false, text, enum words, sizes ("48GiB"). Used by the reader. Pure.
#pragma once

#include <optional>
#include <string>

#include "common/config/yaml_tree.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"

namespace espalier {

// Sets `field` (appends, where it is repeated) to the value of `node`; ranges are not checked.
// Absent: done. Otherwise the message is unchanged and the text says what is wrong:
// "is 'abc'; allowed: a whole number from 1 to 10".
std::optional<std::string> SetScalar(const YamlNode& node,
                                     const google::protobuf::FieldDescriptor& field,
                                     google::protobuf::Message& message);

// "~" and absolute paths stay; others are taken from `folder` and tidied ("a/../b" -> "b").
std::string ResolvePath(const std::string& path, const std::string& folder);

}  // namespace espalier
