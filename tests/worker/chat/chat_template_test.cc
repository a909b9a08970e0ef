// The texts are those of Jinja2 3.1 with transformers' settings (tests/data/chat_templates).
#include "worker/chat/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

using Json = nlohmann::ordered_json;
using testing::HasSubstr;

constexpr char kFolder[] = ESPALIER_SOURCE_DIR "/tests/data/chat_templates/";

std::string ReadFile(const std::string& name) {
  std::ifstream file(kFolder + name);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

absl::Time TestTime() {
  return absl::FromCivil(absl::CivilSecond(2026, 2, 3, 4, 5, 6), absl::UTCTimeZone());
}

absl::StatusOr<std::string> Rendered(absl::string_view source, const Json& variables,
                                     bool add_generation_prompt = false) {
  const auto parsed = ChatTemplate::Parse(source);
  if (!parsed.ok()) return parsed.status();
  return parsed->Render(variables,
                        {.add_generation_prompt = add_generation_prompt, .now = TestTime()});
}

TEST(ChatTemplate, WritesWhatJinjaWrites) {
  const Json cases = Json::parse(ReadFile("cases.json"));
  ASSERT_GT(cases.size(), 100U);
  for (const Json& one : cases) {
    const std::string name = one["template"];
    SCOPED_TRACE(absl::StrCat(name, " ", one["name"].get<std::string>()));
    const auto text = Rendered(ReadFile(name), one["variables"], one["add_generation_prompt"]);
    if (one.contains("text")) {
      ASSERT_TRUE(text.ok()) << text.status();
      EXPECT_EQ(*text, one["text"].get<std::string>());
    } else if (one.contains("refused")) {
      EXPECT_EQ(text.status().code(), absl::StatusCode::kFailedPrecondition) << text.status();
      EXPECT_EQ(std::string(text.status().message()), one["refused"].get<std::string>());
    } else {
      EXPECT_EQ(text.status().code(), absl::StatusCode::kInvalidArgument) << text.status();
    }
  }
}

TEST(ChatTemplate, ComesFromATokenizersConfigWithItsTokens) {
  const auto one = ChatTemplate::FromTokenizerConfig(
      R"({"bos_token": "<s>", "eos_token": {"content": "</s>"},
          "chat_template": "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"})");
  ASSERT_TRUE(one.ok()) << one.status();
  const Json variables = {{"messages", Json::array({{{"role", "user"}, {"content", "hi"}}})}};
  EXPECT_EQ(*one->Render(variables, {}), "<s>hi</s>");
  const auto several = ChatTemplate::FromTokenizerConfig(
      R"({"chat_template": [{"name": "tool_use", "template": "no"},
                            {"name": "default", "template": "yes"}]})");
  EXPECT_EQ(*several->Render(variables, {}), "yes");
  EXPECT_EQ(ChatTemplate::FromTokenizerConfig("{}").status().code(), absl::StatusCode::kNotFound);
}

// As get_chat_template of transformers chooses.
TEST(ChatTemplate, ToolsAskForTheTemplateOfTools) {
  const auto several = ChatTemplate::FromTokenizerConfig(
      R"({"bos_token": "<s>",
          "chat_template": [{"name": "default", "template": "default"},
                            {"name": "tool_use", "template":
                             "{{ bos_token }}{% generation %}{{ tools }}{% endgeneration %}"}]})");
  ASSERT_TRUE(several.ok()) << several.status();
  Json variables = {{"messages", Json::array()}};
  EXPECT_EQ(*several->Render(variables, {}), "default");
  variables["tools"] = nullptr;
  EXPECT_EQ(*several->Render(variables, {}), "default");
  EXPECT_EQ(several->RenderMarked(variables, TestTime())->answers.size(), 0U);
  variables["tools"] = Json::array();
  EXPECT_EQ(*several->Render(variables, {}), "<s>[]");
  EXPECT_EQ(several->RenderMarked(variables, TestTime())->answers.size(), 1U);
  const auto one = ChatTemplate::FromTokenizerConfig(R"({"chat_template": "one"})");
  EXPECT_EQ(*one->Render(variables, {}), "one");
}

TEST(ChatTemplate, WhatIsWrongWithTheTemplateOfToolsMattersToThemAlone) {
  const auto several = ChatTemplate::FromTokenizerConfig(
      R"({"chat_template": [{"name": "default", "template": "default"},
                            {"name": "tool_use", "template": "{{ x | nothing }}{% if %}"}]})");
  ASSERT_TRUE(several.ok()) << several.status();
  Json variables = {{"messages", Json::array()}};
  EXPECT_EQ(*several->Render(variables, {}), "default");
  variables["tools"] = Json::array();
  EXPECT_THAT(std::string(several->Render(variables, {}).status().message()),
              HasSubstr("'tool_use'"));
}

TEST(ChatTemplate, ATemplateOfToolsIsNoneOfConversationsWithout) {
  EXPECT_EQ(ChatTemplate::FromTokenizerConfig(
                R"({"chat_template": [{"name": "tool_use", "template": "tools"}]})")
                .status()
                .code(),
            absl::StatusCode::kNotFound);
}

TEST(ChatTemplate, ChatMlNeedsNoFile) {
  const Json variables = {{"messages", Json::array({{{"role", "user"}, {"content", "hi"}}})}};
  EXPECT_EQ(*ChatTemplate::ChatMl().Render(variables, {.add_generation_prompt = true}),
            "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n");
}

struct Bad {
  const char* source;
  absl::StatusCode code;
  const char* message;
};

TEST(ChatTemplate, ErrorsNameTheLineAndWhatIsAllowed) {
  constexpr auto kWrong = absl::StatusCode::kInvalidArgument;
  constexpr auto kUnknown = absl::StatusCode::kUnimplemented;
  for (const Bad& bad :
       {Bad{"a\n{{ 1 +", kWrong, "line 2"}, Bad{"a\n{% if x %}", kWrong, "there is no endif"},
        Bad{"\n\n{% include 'x' %}", kWrong, "line 3: the statement 'include'"},
        Bad{"{{ 'a", kWrong, "}}"},
        Bad{"{{ x | nothing }}", kUnknown, "the filter 'nothing' is not known"},
        Bad{"{{ x is nothing }}", kUnknown, "the test 'nothing'"},
        Bad{"{{ nothing() }}", kWrong, "the function 'nothing'"},
        Bad{"{{ a.b.c }}", kWrong, "'a' is undefined"}, Bad{"{{ 1 / 0 }}", kWrong, "division by 0"},
        Bad{"{{ 1 + 'a' }}", kWrong, "'+' is not for a integer and a string"},
        Bad{"{% break %}", kWrong, "outside of a loop"}}) {
    const absl::Status status = Rendered(bad.source, Json::object()).status();
    EXPECT_EQ(status.code(), bad.code) << bad.source << " " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(bad.message)) << bad.source;
  }
}

// Anyone may have written the template of a model that somebody downloads.
TEST(ChatTemplate, AHostileTemplateEndsInTimeAndMemory) {
  const std::string deep(100'000, '(');
  for (const std::string& source :
       {std::string(
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"),
        std::string("{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(99) %}"
                    "{% set ns.s = ns.s + ns.s %}{% endfor %}"),
        std::string("{% set ns = namespace(s=[1]) %}{% for i in range(99) %}"
                    "{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s }}"),
        std::string("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"),
        std::string("{% for i in range(9999) %}{{ ('a' * 60000000) | length }}{% endfor %}"),
        std::string("{{ 'a' * 99999999999 }}"), std::string("{{ range(999999999) }}"),
        absl::StrCat("{{ ", deep), absl::StrCat("{{ ", std::string(100'000, '-'), "1 }}"),
        absl::StrCat("{{ 1", std::string(500'000, '['), " }}"),
        // A text that is written and thrown away, or made of a value that a list holds.
        std::string("{% set t = 'a' * 60000000 %}{% for i in range(99999) %}"
                    "{% set x %}{{ t }}{% endset %}{% endfor %}"),
        std::string("{% set t = ['a' * 60000000] %}{% for i in range(99999) %}"
                    "{{ t | string | length }}{% endfor %}"),
        std::string("{% set t = 'a' * 60000000 %}{% for i in range(99999) %}"
                    "{{ (t ~ '') | length }}{% endfor %}"),
        // Many large texts at once.
        std::string("{{ ('a' * 1000) | list | map('replace', 'a', 'b' * 60000000) | length }}"),
        std::string("{{ strftime_now('%E1024S' * 8000000) | length }}"),
        std::string("{{ ('a,' * 30000000).split(',') | length }}"),
        // Methods hold what they are of.
        std::string("{% set n = namespace(v=dict(a=1)) %}{% for i in range(20000) %}"
                    "{% set n.v = dict(a=n.v.items) %}{% endfor %}"),
        absl::StrCat("{{ ", std::string(1000, 'n'), " }}")}) {
    EXPECT_FALSE(Rendered(source, Json::object()).ok()) << source.substr(0, 60);
  }
}

TEST(ChatTemplate, ANamespaceCannotHoldItself) {
  const auto text =
      Rendered("{% set n = namespace(a=1) %}{% set n.a = n['items'] %}{{ n.a is callable }}",
               Json::object());
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(*text, "False");
}

// Calls `body` on a thread of 384 KiB: macOS's have 512, of which the server takes some.
// (Sanitizers take several times as much for the same calls.)
void OnASmallStack(const std::function<void()>& body) {
#ifdef __SANITIZE_ADDRESS__
  constexpr size_t kStack = 8 * (3 << 17);
#else
  constexpr size_t kStack = 3 << 17;
#endif
  pthread_attr_t attributes;
  ASSERT_EQ(pthread_attr_init(&attributes), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&attributes, kStack), 0);
  pthread_t thread;
  const auto run = [](void* given) -> void* {
    (*static_cast<const std::function<void()>*>(given))();
    return nullptr;
  };
  void* const given = const_cast<std::function<void()>*>(&body);
  ASSERT_EQ(pthread_create(&thread, &attributes, run, given), 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
}

std::string Repeated(absl::string_view text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) absl::StrAppend(&all, text);
  return all;
}

// As it is there where requests are answered.
TEST(ChatTemplate, TheDeepestFitsTheStackOfAThreadOnMacos) {
  const std::string calls = "{{ m() }}";
  const auto macro = [](absl::string_view body) {
    return absl::StrCat("{% macro m() %}", body, "{% endmacro %}{{ m() }}");
  };
  for (const std::string& source :
       {macro(calls),
        macro(absl::StrCat(Repeated("{% if true %}", 45), calls, Repeated("{% endif %}", 45))),
        macro(
            absl::StrCat(Repeated("{% for i in [1] %}", 45), calls, Repeated("{% endfor %}", 45))),
        macro(absl::StrCat(Repeated("{% set a %}", 45), calls, Repeated("{% endset %}", 45))),
        macro(absl::StrCat("{{ ", Repeated("[", 30), "m()", Repeated("]", 30), " }}")),
        macro(absl::StrCat("{{ ", Repeated("1 + (", 30), "m()", Repeated(")", 30), " }}")),
        absl::StrCat("{{ ", Repeated("[", 5000), Repeated("]", 5000), " }}"),
        absl::StrCat(Repeated("{% if true %}", 5000), Repeated("{% endif %}", 5000)),
        absl::StrCat("{% if a %}", Repeated("{% elif a %}", 5000), "{% endif %}"),
        absl::StrCat("{% set n = namespace(s=[1]) %}{% for i in range(180) %}{% set n.s = [n.s] %}",
                     "{% endfor %}{{ n.s }}{{ n.s == n.s }}{{ n.s | tojson }}{{ 1 / 0 }}"),
        absl::StrCat("{{ 1", Repeated(" | string", 2000), " }}"),
        absl::StrCat("{{ a", Repeated(".a", 2000), " }}"),
        absl::StrCat("{{ 1", Repeated(" + 'a'", 2000), " }}"),
        absl::StrCat("{{ 'a' | map('map'", Repeated(", 'map'", 1500), ") }}"),
        absl::StrCat(Repeated("{% if true %}", 45), "{{ ", Repeated("[", 30), "1 / 0",
                     Repeated("]", 30), " }}", Repeated("{% endif %}", 45)),
        absl::StrCat("{% macro m(x) %}{{ m([x]) }}{% endmacro %}{{ m(", Repeated("[", 30),
                     Repeated("]", 30), ") }}")}) {
    OnASmallStack([&] { EXPECT_FALSE(Rendered(source, Json::object()).ok()) << source; });
  }
}

}  // namespace
}  // namespace espalier
