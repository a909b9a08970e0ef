#include "common/config/yaml_tree.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/utf8.h"

namespace espalier {
namespace {

constexpr size_t kDepthMax = 24;
constexpr size_t kNodesMax = 20000;
constexpr size_t kShownMax = 60;

// Throws YAML::ParserException, as the parser itself does, for what is valid YAML but not accepted.
class TreeBuilder : public YAML::EventHandler {
 public:
  explicit TreeBuilder(std::shared_ptr<const YamlSource> source) : source_(std::move(source)) {
    root_.source = source_;
  }

  YamlNode Take() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t) override {
    Add(MakeNode(YamlNode::Kind::kNull, mark), mark);
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    Refuse(mark, "aliases (*name) are not accepted; write the value out");
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t,
                const std::string& value) override {
    CheckTag(mark, tag);
    YamlNode node = MakeNode(YamlNode::Kind::kScalar, mark);
    node.text = value;
    node.quoted = tag == "!";
    Add(std::move(node), mark);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {
    Open(YamlNode::Kind::kSequence, mark, tag);
  }
  void OnSequenceEnd() override { Close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {
    Open(YamlNode::Kind::kMap, mark, tag);
  }
  void OnMapEnd() override { Close(); }

 private:
  // A map or sequence whose end has not been seen.
  struct Level {
    YamlNode node;
    bool has_key = false;
    YamlEntry entry;
  };

  [[noreturn]] static void Refuse(const YAML::Mark& mark, const std::string& why) {
    throw YAML::ParserException(mark, why);
  }

  static void CheckTag(const YAML::Mark& mark, const std::string& tag) {
    if (tag.empty() || tag == "?" || tag == "!") return;
    Refuse(mark, absl::StrCat("tags (", Quoted(tag), ") are not accepted"));
  }

  YamlNode MakeNode(YamlNode::Kind kind, const YAML::Mark& mark) {
    if (++nodes_ > kNodesMax) {
      Refuse(mark, absl::StrCat("more than ", kNodesMax, " values; something is wrong here"));
    }
    YamlNode node;
    node.kind = kind;
    node.line = mark.line + 1;
    node.source = source_;
    return node;
  }

  void Open(YamlNode::Kind kind, const YAML::Mark& mark, const std::string& tag) {
    CheckTag(mark, tag);
    if (!open_.empty() && IsKey()) Refuse(mark, "a key must be a plain word");
    if (open_.size() >= kDepthMax) {
      Refuse(mark, absl::StrCat("nested deeper than ", kDepthMax, " levels"));
    }
    open_.push_back({.node = MakeNode(kind, mark)});
  }

  void Close() {
    YamlNode node = std::move(open_.back().node);
    open_.pop_back();
    Add(std::move(node), YAML::Mark::null_mark());
  }

  // Whether the next value of the innermost map is a key.
  bool IsKey() const {
    return open_.back().node.kind == YamlNode::Kind::kMap && !open_.back().has_key;
  }

  void Add(YamlNode node, const YAML::Mark& mark) {
    if (open_.empty()) {
      root_ = std::move(node);
      return;
    }
    Level& level = open_.back();
    if (level.node.kind == YamlNode::Kind::kSequence) {
      level.node.items.push_back(std::move(node));
    } else if (!level.has_key) {
      if (node.kind != YamlNode::Kind::kScalar) Refuse(mark, "a key must be a plain word");
      level.entry = {.key = std::move(node.text), .line = node.line};
      level.has_key = true;
    } else {
      level.entry.value = std::move(node);
      level.node.entries.push_back(std::move(level.entry));
      level.has_key = false;
    }
  }

  std::shared_ptr<const YamlSource> source_;
  YamlNode root_;
  std::vector<Level> open_;
  size_t nodes_ = 0;
};

absl::Status Refused(const YamlSource& source, int line, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(Where(source, line), ": ", why));
}

// Line of the first byte that cannot stand in a text file; 0: there is none.
int FirstBadLine(absl::string_view text) {
  const size_t valid = ValidUtf8Prefix(text);
  size_t bad = valid;
  for (size_t i = 0; i < valid && bad == valid; ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if ((byte < 0x20 && byte != '\t' && byte != '\n' && byte != '\r') || byte == 0x7f) bad = i;
  }
  if (bad == text.size()) return 0;
  int line = 1;
  for (const char c : text.substr(0, bad)) line += c == '\n' ? 1 : 0;
  return line;
}

}  // namespace

const YamlNode* YamlNode::Find(absl::string_view key) const {
  for (const YamlEntry& entry : entries) {
    if (entry.key == key) return &entry.value;
  }
  return nullptr;
}

YamlNode* YamlNode::Find(absl::string_view key) {
  return const_cast<YamlNode*>(std::as_const(*this).Find(key));
}

std::string Where(const YamlSource& source, int line) {
  if (line <= 0 || !source.has_lines) return source.name;
  return absl::StrCat(source.name, ":", line);
}

std::string Quoted(absl::string_view text) {
  const absl::string_view start = text.substr(0, kShownMax);
  const size_t length = ValidUtf8Prefix(start);
  std::string shown = "'";
  for (const char c : start.substr(0, length)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      absl::StrAppendFormat(&shown, "\\x%02x", byte);
    } else {
      shown += c;
    }
  }
  return absl::StrCat(shown, length < text.size() ? "...'" : "'");
}

std::string Describe(const YamlNode& node) {
  switch (node.kind) {
    case YamlNode::Kind::kNull:
      return "nothing";
    case YamlNode::Kind::kScalar:
      return Quoted(node.text);
    case YamlNode::Kind::kSequence:
      return "a list";
    case YamlNode::Kind::kMap:
      return "a section";
  }
  return "";
}

absl::StatusOr<YamlNode> ParseYaml(absl::string_view text,
                                   std::shared_ptr<const YamlSource> source) {
  if (text.size() > kYamlBytesMax) {
    return Refused(*source, 0, absl::StrCat("larger than the ", kYamlBytesMax, " bytes allowed"));
  }
  if (const int line = FirstBadLine(text); line != 0) {
    return Refused(*source, line, "not a text file in UTF-8: an invalid byte stands here");
  }
  try {
    std::istringstream stream{std::string(text)};
    YAML::Parser parser(stream);
    TreeBuilder builder(source);
    parser.HandleNextDocument(builder);
    TreeBuilder further(source);
    if (parser.HandleNextDocument(further)) {
      return Refused(*source, 0, "holds more than one document ('---'); keep one");
    }
    return builder.Take();
  } catch (const YAML::Exception& error) {
    return Refused(*source, error.mark.is_null() ? 0 : error.mark.line + 1,
                   absl::StrCat("not valid YAML: ", error.msg));
  } catch (const std::exception& error) {
    return Refused(*source, 0, absl::StrCat("cannot be read as YAML: ", error.what()));
  }
}

}  // namespace espalier
