// Damaged chat templates: an error or a text, in time, and never a crash. For longer:
// ESPALIER_FUZZ_SECONDS=600 build-asan/tests/worker_chat_tests --gtest_filter='Fuzz*'
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/worker/support/mutations.h"
#include "worker/chat/chat_template.h"

namespace espalier {
namespace {

constexpr char kFolder[] = ESPALIER_SOURCE_DIR "/tests/data/chat_templates/";

std::vector<std::string> Templates() {
  std::vector<std::string> names, texts;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    if (entry.path().extension() == ".jinja") names.push_back(entry.path().string());
  }
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) {
    std::ifstream file(name);
    std::stringstream text;
    text << file.rdbuf();
    texts.push_back(text.str());
  }
  return texts;
}

TEST(Fuzz, DamagedTemplates) {
  FuzzRounds rounds(2000);
  const std::vector<std::string> templates = Templates();
  const auto variables = nlohmann::ordered_json::parse(
      R"({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "é 🚀"},
                       {"role": "assistant", "content": "<think>x</think>y",
                        "tool_calls": [{"id": "abcdef123", "function":
                          {"name": "f", "arguments": {"a": [1, 2.5, null, true]}}}]}],
          "tools": [{"function": {"name": "f", "x": {"y": []}}}], "bos_token": "<s>",
          "eos_token": "</s>", "people": [{"name": "Ann", "age": 3, "admin": true}]})");
  while (rounds.Next()) {
    SCOPED_TRACE(rounds.seed());
    const std::string source = Mutated(templates[rounds.random()() % templates.size()],
                                       {"{{",
                                        "}}",
                                        "{%",
                                        "%}",
                                        "{#",
                                        "-",
                                        "(",
                                        ")",
                                        "[",
                                        "]",
                                        "|",
                                        "'",
                                        " is ",
                                        " not ",
                                        "{% for x in range(9) %}",
                                        "{% endfor %}",
                                        "{% if x %}",
                                        "{% endif %}",
                                        "|tojson",
                                        "|list",
                                        "|length",
                                        "[::-1]",
                                        "*9999999",
                                        "**99",
                                        "messages",
                                        "loop",
                                        "namespace"},
                                       rounds.random());
    const auto parsed = ChatTemplate::Parse(source);
    if (!parsed.ok()) continue;
    const auto text = parsed->Render(variables, {.add_generation_prompt = true});
    if (!text.ok()) {
      ASSERT_FALSE(text.status().message().empty());
    }
  }
}

}  // namespace
}  // namespace espalier
