#include "tests/fuzz/target.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace espalier {
namespace {

constexpr char kTestData[] = ESPALIER_SOURCE_DIR "/tests/data/";
constexpr size_t kMessageMax = size_t{16} << 10;

}  // namespace

const std::vector<FuzzTarget>& FuzzTargets() {
  static const auto& targets = *new std::vector<FuzzTarget>{
      SafetensorsTarget(),  TokenizerTarget(), ConfigTarget(),        AdapterTarget(),
      ChatTemplateTarget(), RowsTarget(),      SentencePieceTarget(), ManifestTarget(),
      RecordTarget(),       AnswerTarget(),    YamlTarget()};
  return targets;
}

std::string BrokenBy(const absl::Status& refusal) {
  if (refusal.ok()) return "";
  if (refusal.message().empty()) return absl::StrCat("no reason: ", refusal.ToString());
  if (refusal.message().size() > kMessageMax) {
    return absl::StrCat("a message of ", refusal.message().size(),
                        " bytes: ", refusal.message().substr(0, 200));
  }
  if (absl::IsInternal(refusal) || absl::IsUnknown(refusal)) return refusal.ToString();
  return "";
}

std::string TestData(absl::string_view name) {
  std::ifstream file(absl::StrCat(kTestData, name), std::ios::binary);
  ESPALIER_CHECK(file.good(), "tests/data has all files that the targets begin with");
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<std::string> TestDataIn(absl::string_view folder, absl::string_view suffix) {
  std::vector<std::string> names, texts;
  for (const auto& entry : std::filesystem::directory_iterator(absl::StrCat(kTestData, folder))) {
    const std::string name = entry.path().filename().string();
    if (absl::EndsWith(name, suffix)) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) texts.push_back(TestData(absl::StrCat(folder, "/", name)));
  return texts;
}

std::vector<std::string> FormerFindings(const FuzzTarget& target) {
  const std::string folder = absl::StrCat("fuzz/", target.name);
  if (!std::filesystem::exists(absl::StrCat(kTestData, folder))) return {};
  return TestDataIn(folder, "");
}

}  // namespace espalier
