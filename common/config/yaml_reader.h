// YamlReader: fills a configuration message from a YAML tree by field name, with the rules of
// rule.proto, and says what is wrong in words a person can act on. Used by job_file.cc,
// cluster_file.cc, reward_rules.cc and worker/task/run_name.cc. Not thread-safe.
#pragma once

#include <optional>
#include <string>

#include "common/config/rules.h"
#include "common/config/yaml_tree.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"

namespace espalier {

class YamlReader {
 public:
  // Problems are added to `problems`, which must outlive the reader.
  explicit YamlReader(Problems& problems) : problems_(problems) {}

  // Sets the fields that `node` gives. `path` names the section in messages; empty: the whole file.
  // A section whose keys are all commented out (kNull) counts as empty.
  void Read(const YamlNode& node, const std::string& path, google::protobuf::Message& message);

  // Sets the defaults of what `node` did not give, in all sections, and reports required keys that
  // are missing. `node` is the tree that `message` was read from, or null: none.
  void FillDefaults(const YamlNode* node, const std::string& path,
                    google::protobuf::Message& message);

 private:
  void ReadKey(const YamlEntry& entry, const std::string& path,
               const google::protobuf::FieldDescriptor& field, google::protobuf::Message& message);
  void ReadSections(const YamlNode& node, const std::string& path,
                    const google::protobuf::FieldDescriptor& field,
                    google::protobuf::Message& message);
  void ReadValues(const YamlNode& node, const std::string& path,
                  const google::protobuf::FieldDescriptor& field,
                  google::protobuf::Message& message);
  void ReportUnknown(const YamlEntry& entry, const std::string& path,
                     const google::protobuf::Message& message);
  void FillValue(const YamlNode* node, const std::string& path,
                 const google::protobuf::FieldDescriptor& field,
                 google::protobuf::Message& message);
  void FillSections(const YamlNode* node, const std::string& path,
                    const google::protobuf::FieldDescriptor& field,
                    google::protobuf::Message& message);

  Problems& problems_;
  const google::protobuf::Descriptor* root_ = nullptr;
  const YamlSource* file_ = nullptr;
};

// Sets the defaults of a message that came from elsewhere; required fields are not looked at.
void FillDefaultValues(google::protobuf::Message& message);

// Clears fields with the value that FillDefaultValues gives them: two messages are equal then if
// what they say is, whichever version of this program filled them in.
void ClearDefaultValues(google::protobuf::Message& message);

// The reader's part for single values, with the types that YAML has for people: whole numbers,
// numbers, true/false, text, enum words, sizes ("48GiB"). In yaml_scalar.cc.
//
// Sets `field` (appends, where it is repeated) to the value of `node`; ranges are not checked.
// Absent: done. Otherwise the message is unchanged and the text says what is wrong:
// "is 'abc'; allowed: a whole number from 1 to 10".
std::optional<std::string> SetScalar(const YamlNode& node,
                                     const google::protobuf::FieldDescriptor& field,
                                     google::protobuf::Message& message);

// "~" and absolute paths stay; others are taken from `folder` and tidied ("a/../b" -> "b").
std::string ResolvePath(const std::string& path, const std::string& folder);

}  // namespace espalier
