#include "worker/tokenizer/open_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "tests/worker/support/test_folder.h"
#include "tests/worker/tokenizer/tokenizer_cases.h"

namespace espalier {
namespace {

using nlohmann::json;
using testing::HasSubstr;

TEST(OpenTokenizer, NamesTheFile) {
  const TestFolder folder;
  EXPECT_EQ(OpenTokenizer(folder / "none").status().code(), absl::StatusCode::kNotFound);
  folder.Write("tokenizer.json", MakeByteTokenizer()->Json());
  EXPECT_TRUE(OpenTokenizer(folder.path()).ok());
  EXPECT_TRUE(OpenTokenizer(folder / "tokenizer.json").ok());
  folder.Write("tokenizer.json", "{");
  EXPECT_THAT(std::string(OpenTokenizer(folder.path()).status().message()),
              HasSubstr(folder / "tokenizer.json"));
}

TEST(OpenTokenizer, TakesTheEndOfTextFromWhatLiesBesideIt) {
  const TestFolder folder;
  folder.Write("tokenizer.json", TokenizerJson("llama-tiny").dump());
  EXPECT_EQ((*OpenTokenizer(folder.path()))->end_of_text(), 1);  // <|end_of_text|> by its name
  folder.Write("config.json", R"({"eos_token_id": [3, 2]})");
  EXPECT_EQ((*OpenTokenizer(folder.path()))->end_of_text(), 3);
  folder.Write("tokenizer_config.json", R"({"eos_token": {"content": "<|eot_id|>"}})");
  EXPECT_EQ((*OpenTokenizer(folder.path()))->end_of_text(), 2);
  folder.Write("tokenizer_config.json", R"({"eos_token": "<|none|>"})");
  EXPECT_THAT(std::string(OpenTokenizer(folder.path()).status().message()), HasSubstr("<|none|>"));
}

TEST(OpenTokenizer, KeepsBothFilesAsTheyAre) {
  const TestFolder folder;
  const std::string text = TokenizerJson("llama-tiny").dump(3);
  const std::string config = R"({"eos_token":"<|eot_id|>","model_max_length":8192})";
  folder.Write("tokenizer.json", text);
  folder.Write("tokenizer_config.json", config);
  const auto tokenizer = OpenTokenizer(folder.path());
  EXPECT_EQ((*tokenizer)->Json(), text);
  EXPECT_EQ((*tokenizer)->ConfigJson(), config);
  folder.Write("chat_template.jinja", "{{ messages }}");
  const json carried = json::parse((*OpenTokenizer(folder.path()))->ConfigJson());
  EXPECT_EQ(carried["chat_template"], "{{ messages }}");
  EXPECT_EQ(carried["model_max_length"], 8192);
}

std::string TemplateOf(const TestFolder& folder) {
  const auto tokenizer = OpenTokenizer(folder.path());
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return json::parse((*tokenizer)->ConfigJson())["chat_template"];
}

// As transformers takes it, whatever the config has.
TEST(OpenTokenizer, ATemplateOfItsOwnFileComesFirst) {
  for (
      const char* config :
      {R"({"eos_token": "<|eot_id|>", "chat_template": "config"})",
       R"({"eos_token": "<|eot_id|>", "chat_template": [{"name": "default", "template": "c"}]})"}) {
    const TestFolder folder;
    folder.Write("tokenizer.json", TokenizerJson("llama-tiny").dump());
    folder.Write("tokenizer_config.json", config);
    folder.Write("chat_template.jinja", "file");
    EXPECT_EQ(TemplateOf(folder), "file");
  }
}

TEST(OpenTokenizer, ATemplateOfItsOwnFileStandsForOneThatIsNull) {
  const TestFolder folder;
  folder.Write("tokenizer.json", TokenizerJson("llama-tiny").dump());
  folder.Write("tokenizer_config.json", R"({"eos_token": "<|eot_id|>", "chat_template": null})");
  folder.Write("chat_template.jinja", "file");
  EXPECT_EQ(TemplateOf(folder), "file");
}

TEST(OpenTokenizer, ATemplateOfItsOwnFileNeedsNoConfig) {
  for (const std::string& text :
       {TokenizerJson("llama-tiny").dump(), MakeByteTokenizer()->Json()}) {
    const TestFolder folder;
    folder.Write("tokenizer.json", text);
    const std::unique_ptr<Tokenizer> without = *OpenTokenizer(folder.path());
    json config = json::parse(without->ConfigJson());
    folder.Write("chat_template.jinja", "file");
    EXPECT_EQ(TemplateOf(folder), "file");
    config["chat_template"] = "file";
    EXPECT_EQ(json::parse((*OpenTokenizer(folder.path()))->ConfigJson()), config);
  }
}

TEST(OpenTokenizer, ATemplateThatIsNoTextIsRefused) {
  const TestFolder folder;
  folder.Write("tokenizer.json", TokenizerJson("llama-tiny").dump());
  folder.Write("chat_template.jinja", "\xff");
  EXPECT_THAT(std::string(OpenTokenizer(folder.path()).status().message()),
              HasSubstr("chat_template.jinja"));
}

struct Refused {
  const char* name;
  std::function<void(json&)> change;
  absl::StatusCode code;
  const char* message;
};

class RefusedTokenizer : public testing::TestWithParam<Refused> {};

TEST_P(RefusedTokenizer, SaysWhatIsWrong) {
  json tokenizer = TokenizerJson("llama-tiny");
  GetParam().change(tokenizer);
  const absl::Status status = TokenizerFromJson(tokenizer.dump()).status();
  EXPECT_EQ(status.code(), GetParam().code) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().message));
}

constexpr auto kUnknown = absl::StatusCode::kUnimplemented;
constexpr auto kWrong = absl::StatusCode::kInvalidArgument;

void SetExpression(json& t, const char* expression) {
  t["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = expression;
}

INSTANTIATE_TEST_SUITE_P(
    Parts, RefusedTokenizer,
    testing::Values(
        Refused{"Model", [](json& t) { t["model"]["type"] = "Unigram"; }, kUnknown,
                "a Unigram tokenizer with 768 entries"},
        Refused{"NoModel", [](json& t) { t.erase("model"); }, kWrong, "'model'"},
        Refused{"Merge",
                [](json& t) {
                  t["model"]["merges"].push_back({"zz", "q"});
                },
                kWrong, "not in the vocabulary"},
        Refused{"MergeOfThree", [](json& t) { t["model"]["merges"].push_back("a b c"); }, kWrong,
                "no pair"},
        Refused{"Id", [](json& t) { t["model"]["vocab"]["zz"] = 1 << 30; }, kWrong, "2^22 - 1"},
        Refused{"NegativeId", [](json& t) { t["model"]["vocab"]["zz"] = -1; }, kWrong, "zz"},
        Refused{"Dropout", [](json& t) { t["model"]["dropout"] = 0.1; }, kUnknown, "dropout"},
        Refused{"Suffix", [](json& t) { t["model"]["end_of_word_suffix"] = "</w>"; }, kUnknown,
                "end_of_word_suffix"},
        Refused{"Normalizer",
                [](json& t) {
                  t["normalizer"] = {{"type", "Lowercase"}};
                },
                kUnknown, "Lowercase"},
        Refused{"PreTokenizer",
                [](json& t) {
                  t["pre_tokenizer"] = {{"type", "BertPreTokenizer"}};
                },
                kUnknown, "BertPreTokenizer"},
        Refused{"Decoder",
                [](json& t) {
                  t["decoder"] = {{"type", "WordPiece"}};
                },
                kUnknown, "WordPiece"},
        Refused{"PostProcessor",
                [](json& t) {
                  t["post_processor"] = {{"type", "BertProcessing"}};
                },
                kUnknown, "BertProcessing"},
        Refused{"Frame",
                [](json& t) {
                  t["post_processor"]["special_tokens"]["<|begin_of_text|>"]["ids"] = {4000};
                },
                kWrong, "outside the vocabulary"},
        Refused{"WordClass", [](json& t) { SetExpression(t, "\\w+"); }, kUnknown, "\\w"},
        Refused{"Script", [](json& t) { SetExpression(t, "\\p{Han}+"); }, kUnknown, "\\p{Han}"},
        Refused{"NestedClass", [](json& t) { SetExpression(t, "[a[bc]]"); }, kUnknown,
                "a class within a class"},
        Refused{"NoExpression", [](json& t) { SetExpression(t, "(a"); }, kWrong, "'(a'"},
        Refused{"AddedToken", [](json& t) { t["added_tokens"][0]["content"] = ""; }, kWrong,
                "added token"}),
    [](const auto& info) { return info.param.name; });

TEST(OpenTokenizer, AnExpressionThatTakesTooLongEndsWithAnError) {
  json tokenizer = TokenizerJson("llama-tiny");
  SetExpression(tokenizer, "(a|aa)+b");
  const auto opened = TokenizerFromJson(tokenizer.dump());
  ASSERT_TRUE(opened.ok()) << opened.status();
  std::vector<int32_t> ids;
  const absl::Status status = (*opened)->Encode(std::string(200, 'a') + "cb", ids);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
}

TEST(OpenTokenizer, BytesKeepTheChatTemplateThatLiesBesideThem) {
  const TestFolder folder;
  folder.Write("tokenizer.json", MakeByteTokenizer()->Json());
  const std::string config = "{\"chat_template\": \"{{ messages }}\"}";
  folder.Write("tokenizer_config.json", config);
  const auto tokenizer = OpenTokenizer(folder.path());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->kind(), "byte");
  EXPECT_EQ((*tokenizer)->ConfigJson(), config);
}

TEST(Tokenizer, APromptsSpecialTokensAreTokensAndItsFrameIsThereOnce) {
  const auto tokenizer = TokenizerFromJson(TokenizerJson("llama3-real").dump());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const int32_t begin = *(*tokenizer)->IdOf("<|begin_of_text|>");
  const int32_t turn = *(*tokenizer)->IdOf("<|eot_id|>");
  const auto text = (*tokenizer)->EncodePrompt("hello");
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(text->front(), begin);
  EXPECT_EQ(*(*tokenizer)->EncodePrompt("<|begin_of_text|>hello"), *text);
  EXPECT_EQ(*(*tokenizer)->EncodePrompt("<|eot_id|>"), (std::vector<int32_t>{begin, turn}));
  EXPECT_EQ(*(*tokenizer)->EncodePrompt(""), std::vector<int32_t>{begin});
}

// What is to be continued does not end with what ends texts.
TEST(Tokenizer, NothingIsPutBehindAPrompt) {
  nlohmann::json json = TokenizerJson("llama-tiny");
  const auto plain = TokenizerFromJson(json.dump());
  ASSERT_TRUE(plain.ok()) << plain.status();
  const int32_t end = (*plain)->end_of_text();
  json["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single",
       {{{"Sequence", {{"id", "A"}, {"type_id", 0}}}},
        {{"SpecialToken", {{"id", "end"}, {"type_id", 0}}}}}},
      {"special_tokens", {{"end", {{"id", "end"}, {"ids", {end}}, {"tokens", {"end"}}}}}}};
  const auto tokenizer = TokenizerFromJson(json.dump());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  std::vector<int32_t> ids;
  ASSERT_TRUE((*tokenizer)->Encode("hello", ids, {.frame = true}).ok());
  ASSERT_EQ(ids.back(), end);
  ids.pop_back();
  EXPECT_EQ(*(*tokenizer)->EncodePrompt("hello"), ids);
}

}  // namespace
}  // namespace espalier
