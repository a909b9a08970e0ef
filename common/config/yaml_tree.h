// YamlNode: one YAML document as a tree of plain values that remember where they were written.
// The only code that knows yaml-cpp. Used by the loader (yaml_reader.h) and, for Quoted, by
// coordinator/ctl/data_check.cc. Plain values: any thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace espalier {

// Where a text came from.
struct YamlSource {
  std::string name;    // shown in messages: a file's path, or "--set KEY=VALUE"
  std::string folder;  // relative paths in it are taken from here
  // Whether line numbers mean anything to the reader of a message.
  bool has_lines = true;
};

struct YamlEntry;

struct YamlNode {
  enum class Kind {
    kNull,      // nothing, "~" or "null"
    kScalar,    // text
    kSequence,  // items
    kMap,       // entries
  };
  Kind kind = Kind::kNull;
  std::string text;
  bool quoted = false;
  int line = 0;  // from 1; 0: none
  std::shared_ptr<const YamlSource> source;
  std::vector<YamlNode> items;
  std::vector<YamlEntry> entries;  // in the order written; a key may be there twice

  // The value of the first entry with this key, or null.
  const YamlNode* Find(absl::string_view key) const;
  YamlNode* Find(absl::string_view key);
};

struct YamlEntry {
  std::string key;
  int line = 0;
  YamlNode value;
};

inline constexpr size_t kYamlBytesMax = 256 << 10;

// "jobs/a.yaml:12", or only the name where there is no line.
std::string Where(const YamlSource& source, int line);

// What a person would call the node: "a list", "a section", "nothing", or its text in quotes, cut
// and made printable.
std::string Describe(const YamlNode& node);

// Text in single quotes, cut to a readable length, control characters as \xNN.
std::string Quoted(absl::string_view text);

// One document of at most kYamlBytesMax bytes of UTF-8. INVALID_ARGUMENT with place and reason: bad
// syntax, several documents, anchors' aliases, explicit tags, keys that are not plain words,
// nesting beyond 24 levels. An empty text is a kNull node.
absl::StatusOr<YamlNode> ParseYaml(absl::string_view text,
                                   std::shared_ptr<const YamlSource> source);

}  // namespace espalier
