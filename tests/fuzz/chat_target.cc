// Chat templates.
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "tests/fuzz/damage.h"
#include "tests/fuzz/target.h"
#include "worker/chat/chat_template.h"

namespace espalier {
namespace {

const nlohmann::ordered_json& Variables() {
  static const auto& variables = *new nlohmann::ordered_json(nlohmann::ordered_json::parse(
      R"({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "é 🚀"},
                       {"role": "assistant", "content": "<think>x</think>y",
                        "tool_calls": [{"id": "abcdef123", "function":
                          {"name": "f", "arguments": {"a": [1, 2.5, null, true]}}}]}],
          "tools": [{"function": {"name": "f", "x": {"y": []}}}], "bos_token": "<s>",
          "eos_token": "</s>", "people": [{"name": "Ann", "age": 3, "admin": true}]})"));
  return variables;
}

// A template, or the tokenizer_config.json that holds one.
std::string CheckTemplate(absl::string_view input) {
  auto parsed = ChatTemplate::FromTokenizerConfig(input);
  if (!parsed.ok()) {
    if (std::string broken = BrokenBy(parsed.status()); !broken.empty()) return broken;
    parsed = ChatTemplate::Parse(input);
  }
  if (!parsed.ok()) return BrokenBy(parsed.status());
  const auto text =
      parsed->Render(Variables(), {.add_generation_prompt = true, .now = absl::UnixEpoch()});
  if (!text.ok()) return BrokenBy(text.status());
  const auto marked = parsed->RenderMarked(Variables(), absl::UnixEpoch());
  if (!marked.ok()) return BrokenBy(marked.status());
  for (const TextSpan& answer : marked->answers) {
    if (answer.begin > answer.end || answer.end > marked->text.size()) {
      return "an answer lies outside the text";
    }
  }
  return "";
}

std::vector<std::string> TemplateSeeds() {
  std::vector<std::string> seeds = TestDataIn("chat_templates", ".jinja");
  nlohmann::json config{{"bos_token", "<s>"}, {"eos_token", {{"content", "</s>"}}}};
  config["chat_template"] = {{{"name", "default"}, {"template", seeds.front()}},
                             {{"name", "tool_use"}, {"template", seeds.back()}}};
  seeds.push_back(config.dump());
  return seeds;
}

std::string DamageTemplate(const std::string& input, std::mt19937_64& random) {
  static constexpr absl::string_view kWords[] = {"{{",
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
                                                 "namespace",
                                                 "|join('a')",
                                                 ".split('a')",
                                                 ".replace('', 'aa')",
                                                 "|indent(99999999)",
                                                 "range(99999999)",
                                                 "{% macro m(x) %}",
                                                 "{% endmacro %}",
                                                 "{{ m(m(1)) }}",
                                                 "{% set x = x ~ x %}",
                                                 "|sort",
                                                 "{% generation %}",
                                                 "{% endgeneration %}",
                                                 "|dictsort",
                                                 "|map(attribute='a')",
                                                 "|reverse",
                                                 "raise_exception('a')",
                                                 "strftime_now('%Y')",
                                                 "% 9",
                                                 "// 0",
                                                 "is in",
                                                 "-9223372036854775808"};
  return DamagedText(input, kWords, random);
}

}  // namespace

FuzzTarget ChatTemplateTarget() {
  return {"chat_template", CheckTemplate, TemplateSeeds, DamageTemplate, 4000};
}

}  // namespace espalier
