// What may stand in a configuration field: its type in words and its `rule` option (rule.proto).
// One check of values for the YAML loader and for messages that came over the network, so that both
// allow the same. Used by common/config and
// coordinator/ctl/trainer_config.cc. Pure: any thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "espalier/v1/rule.pb.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"

namespace espalier {

const v1::FieldRule& RuleOf(const google::protobuf::FieldDescriptor& field);

// A section (message field), as opposed to a value.
bool IsSection(const google::protobuf::FieldDescriptor& field);

// Whether an absent section is filled with its defaults.
bool IsFilledSection(const google::protobuf::FieldDescriptor& field);

std::string NameOf(const google::protobuf::FieldDescriptor& field);
// "train" + "steps" -> "train.steps"; "" + "train" -> "train".
std::string PathOf(absl::string_view section, absl::string_view name);
std::vector<std::string> KeysOf(const google::protobuf::Descriptor& section);

// How YAML spells an enum value ("cosine"), all of them, and the number of a spelling.
std::string EnumText(const google::protobuf::EnumValueDescriptor& value);
std::vector<std::string> EnumTexts(const google::protobuf::EnumDescriptor& type);
std::optional<int> EnumNumber(const google::protobuf::EnumDescriptor& type, absl::string_view text);

// Short and exact where possible: 8388608, 0.95, 1e12.
std::string NumberText(double value);

// "a whole number from 1 to 1e12 steps", "one of: auto, cpu", "true or false", "text".
std::string AllowedText(const google::protobuf::FieldDescriptor& field);

// Checks the values of a field that is set (every element of a repeated one). Absent: all are
// allowed. Otherwise the first offence: "is 1.5; allowed: a number from 0 to 1".
std::optional<std::string> CheckField(const google::protobuf::Message& message,
                                      const google::protobuf::FieldDescriptor& field);

// The keys of a configuration file as a table, made from the schema. One line a key: "train.steps
// a whole number from 1 to 1e12 steps   default 1000".
std::string ReferenceOf(const google::protobuf::Descriptor& type);

}  // namespace espalier
