// Job and cluster files.
#include "absl/strings/str_cat.h"
#include "common/config/cluster_file.h"
#include "common/config/job_file.h"
#include "tests/fuzz/damage.h"
#include "tests/fuzz/target.h"

namespace espalier {
namespace {

constexpr char kConfigs[] = "../../configs/";

std::string CheckYaml(absl::string_view input) {
  const auto cluster = LoadClusterText({.yaml = input, .origin = "c.yaml", .folder = "/c"});
  if (std::string broken = BrokenBy(cluster.status()); !broken.empty()) return broken;
  const auto spec = LoadJobText({.yaml = input, .origin = "j.yaml", .folder = "/jobs"});
  if (!spec.ok()) return BrokenBy(spec.status());
  const bool waits_for_data = spec->train().has_epochs() && !spec->train().has_steps();
  if (!waits_for_data && !ValidateJobSpec(*spec).ok()) return "what was loaded cannot run";
  const std::string text = JobSpecToYaml(*spec);
  const auto again = LoadJobText({.yaml = text, .origin = "again", .folder = "/jobs"});
  if (!again.ok()) return absl::StrCat("what it writes is refused: ", again.status().ToString());
  return JobSpecToYaml(*again) == text ? "" : "what it writes is another job";
}

std::vector<std::string> YamlSeeds() {
  std::vector<std::string> seeds = TestDataIn(absl::StrCat(kConfigs, "jobs"), ".yaml");
  for (std::string& cluster : TestDataIn(absl::StrCat(kConfigs, "clusters"), ".yaml")) {
    seeds.push_back(std::move(cluster));
  }
  return seeds;
}

std::string DamageYaml(const std::string& input, std::mt19937_64& random) {
  static constexpr absl::string_view kWords[] = {
      ":",       "- ",         "\n",       "\n  ",      "{",
      "}",       "[",          "]",        "'",         "\"",
      "&a",      "*a",         "!x",       "? ",        "| ",
      "> ",      "%TAG ! x\n", "---\n",    "...",       "#",
      "~",       "null",       "true",     "-1",        "1e99",
      ".nan",    "0x10",       "\t",       ",",         "ä",
      "@",       "`",          "<<",       "\r",        "99999999999999999999",
      "name: ",  "train:\n",   "model:\n", "epochs: 1", "task: sft",
      "lora:\n", "10GiB",      "5s",       "~/x",       "{a: ",
      "[[]: "};
  return DamagedText(input, kWords, random);
}

}  // namespace

FuzzTarget YamlTarget() { return {"yaml", CheckYaml, YamlSeeds, DamageYaml, 400}; }

}  // namespace espalier
