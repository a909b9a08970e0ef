// Every *.txt beside this file is a scenario: commands, "----", and the effects they must have.
// ESPALIER_REWRITE=1 (or --rewrite) writes the effects that they have; review the difference.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "tests/scenarios/stage.h"

namespace espalier::scenarios {
namespace {

bool rewrite = false;

std::vector<std::string> ScenarioNames() {
  std::vector<std::string> names;
  for (const auto& entry :
       std::filesystem::directory_iterator(ESPALIER_SOURCE_DIR "/tests/scenarios")) {
    const std::string name = entry.path().stem().string();
    if (entry.path().extension() == ".txt" && name != "CMakeLists") names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string PathOf(const std::string& name) {
  return ESPALIER_SOURCE_DIR "/tests/scenarios/" + name + ".txt";
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// The file with the effects that its commands have now. Comments and blank lines stay; what stands
// between "----" and the next blank line is replaced.
std::string Play(const std::string& text) {
  Stage stage;
  std::string played;
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  for (size_t i = 0; i < lines.size(); ++i) {
    const std::string& line = lines[i];
    if (line.empty() || line[0] == '#') {
      played += line + "\n";
      continue;
    }
    const absl::StatusOr<std::string> effects = stage.Do(line);
    EXPECT_TRUE(effects.ok()) << line << ": " << effects.status();
    const bool recorded = i + 1 < lines.size() && lines[i + 1] == "----";
    while (recorded && i + 1 < lines.size() && !lines[i + 1].empty()) ++i;
    if (recorded) ++i;
    played += line + "\n----\n" + (effects.ok() ? *effects : "") + "\n";
  }
  while (played.size() > 1 && played.substr(played.size() - 2) == "\n\n") played.pop_back();
  return played;
}

class Scenario : public testing::TestWithParam<std::string> {};

TEST_P(Scenario, HasTheRecordedEffects) {
  const std::string path = PathOf(GetParam());
  const std::string recorded = ReadFile(path);
  const std::string played = Play(recorded);
  if (rewrite) {
    std::ofstream(path) << played;
    return;
  }
  EXPECT_EQ(played, recorded) << "run with ESPALIER_REWRITE=1 and review the difference";
}

INSTANTIATE_TEST_SUITE_P(Files, Scenario, testing::ValuesIn(ScenarioNames()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace espalier::scenarios

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const char* wanted = std::getenv("ESPALIER_REWRITE");
  espalier::scenarios::rewrite = wanted != nullptr && std::string(wanted) == "1";
  for (int i = 1; i < argc; ++i) {
    if (std::string(argv[i]) == "--rewrite") espalier::scenarios::rewrite = true;
  }
  return RUN_ALL_TESTS();
}
