// Whatever bytes stand in a file, loading it ends in a spec or an error: no crash, no hang, no
// unbounded memory or message.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/file_system.h"
#include "common/base/random.h"
#include "common/base/utf8.h"
#include "common/config/cluster_file.h"
#include "common/config/job_file.h"
#include "common/config/yaml_tree.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

constexpr size_t kMessageMax = 64 << 10;

std::string Repeat(absl::string_view text, size_t times) {
  std::string all;
  for (size_t i = 0; i < times; ++i) all.append(text.data(), text.size());
  return all;
}

absl::Status Load(const std::string& text) {
  return LoadJobText({.yaml = text, .origin = "h.yaml", .folder = "/jobs"}).status();
}

void ExpectSound(const absl::Status& status, const std::string& text) {
  EXPECT_LT(status.message().size(), kMessageMax);
  EXPECT_EQ(ValidUtf8Prefix(status.message()), status.message().size()) << text;
  if (status.ok()) return;
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(status.message().empty());
}

struct Case {
  const char* name;
  std::string text;
  std::string error;
};

TEST(HostileYaml, KnownTricksAreRefusedWithTheirPlace) {
  const std::string lists = Repeat("[", 400) + Repeat("]", 400);
  const std::string maps = Repeat("{a: ", 100) + "1" + Repeat("}", 100);
  const Case cases[] = {
      {"empty", "", "name is missing"},
      {"only a comment", "# nothing\n", "name is missing"},
      {"a word", "hello", "h.yaml:1: the file is 'hello'; it must hold 'key: value' lines"},
      {"a list", "- a\n- b\n", "h.yaml:1: the file is a list"},
      {"two documents", "name: a\n---\nname: b\n", "more than one document"},
      {"lists in lists", lists, "nested deeper than 24 levels"},
      {"maps in maps", maps, "nested deeper than 24 levels"},
      {"block lists", Repeat("- ", 10000) + "a", "deep"},
      {"alias bomb", "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n",
       "h.yaml:2: not valid YAML: aliases (*name) are not accepted"},
      {"alias of itself", "a: &a [*a]", "aliases"},
      {"unknown alias", "a: *b", "h.yaml:1: "},
      {"tag", "name: !!binary aGk=", "tags ("},
      {"not UTF-8", "name: a\nmodel: \xff\n", "h.yaml:2: not a text file in UTF-8"},
      {"overlong UTF-8", "name: \xc0\xaf", "not a text file"},
      {"UTF-16", std::string("\xff\xfen\0a\0", 6), "not a text file"},
      {"NUL", std::string("name: a\0b", 9), "h.yaml:1: not a text file"},
      {"huge", Repeat("#", kYamlBytesMax + 1), "larger than the 262144 bytes allowed"},
      {"many values", "a: [" + Repeat("1,", 60000) + "]", "more than 20000 values"},
      {"open quote", "name: \"a", "not valid YAML"},
      {"tab", "name:\n\tx: 1", "not valid YAML"},
  };
  for (const Case& c : cases) {
    const absl::Status status = Load(c.text);
    ExpectSound(status, c.name);
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.error)) << c.name;
  }
}

TEST(HostileYaml, LongWordsAreCutInMessages) {
  const absl::Status status = Load(Repeat("\xc3\xa4", 500) + ": 1\n");
  ExpectSound(status, "long key");
  EXPECT_LT(status.message().size(), 2000u);
}

TEST(HostileYaml, ALongRunOfAnyTokenEndsInAStatus) {
  for (const char* token :
       {"[",    "{", "{a: ", "[[]: ", "? ", "- ", "a: ", "a:\n", "- a\n", "&a ",  "!x ",
        "%X\n", "'", "\"",   "| ",    "\n", " ",  "#",   ",",    "---\n", "<<: ", "*a "}) {
    const std::string text = Repeat(token, 60000 / std::string(token).size());
    ExpectSound(Load(text), token);
    ExpectSound(Load("name: " + text), token);
    ExpectSound(Load("train:\n  " + text), token);
  }
}

// Words that change the meaning of YAML, spliced into good files.
const std::vector<std::string>& Splices() {
  static const auto& splices = *new std::vector<std::string>{
      ":",      "- ",      "\n",   "\n  ", "{",          "}",
      "[",      "]",       "'",    "\"",   "&a",         "*a",
      "!x",     "? ",      "| ",   "> ",   "%TAG ! x\n", "---\n",
      "...",    "#",       "~",    "null", "true",       "-1",
      "1e99",   ".nan",    "0x10", "\t",   ",",          "\xc3\xa4",
      "@",      "`",       "<<",   "\r",   "\x80",       "99999999999999999999",
      "name: ", "train:\n"};
  return splices;
}

std::string Mutate(std::string text, SplitMix64& random) {
  const uint64_t edits = 1 + random.Below(4);
  for (uint64_t i = 0; i < edits; ++i) {
    const auto at = static_cast<size_t>(random.Below(text.size() + 1));
    const auto length = static_cast<size_t>(random.Below(12));
    switch (random.Below(4)) {
      case 0:
        text.erase(at, length);
        break;
      case 1:
        text.insert(at, Splices()[random.Below(Splices().size())]);
        break;
      case 2:
        text.insert(at, text.substr(random.Below(text.size() + 1), length));
        break;
      default:
        if (at < text.size()) text[at] = static_cast<char>(random.Below(256));
    }
  }
  return text;
}

TEST(HostileYaml, MutatedFilesLoadOrFailButNeverCrash) {
  const std::string configs = ESPALIER_SOURCE_DIR "/configs/";
  const auto job = PosixFileSystem().Read(configs + "jobs/quickstart.yaml", kYamlBytesMax);
  const auto cluster = PosixFileSystem().Read(configs + "clusters/two-macs.yaml", kYamlBytesMax);
  ASSERT_TRUE(job.ok() && cluster.ok());
  int loaded = 0;
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    SplitMix64 random(seed);
    const std::string bad_job = Mutate(*job, random);
    const std::string bad_cluster = Mutate(*cluster, random);
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    const auto spec = LoadJobText({.yaml = bad_job, .origin = "j", .folder = "/jobs"});
    ExpectSound(spec.status(), bad_job);
    ExpectSound(LoadClusterText({.yaml = bad_cluster, .origin = "c", .folder = "/c"}).status(),
                bad_cluster);
    if (!spec.ok()) continue;
    ++loaded;
    EXPECT_TRUE(ValidateJobSpec(*spec).ok()) << bad_job << ValidateJobSpec(*spec);
    EXPECT_TRUE(Load(JobSpecToYaml(*spec)).ok()) << JobSpecToYaml(*spec);
  }
  EXPECT_GT(loaded, 100) << "the mutations no longer leave good files";
}

}  // namespace
}  // namespace espalier
