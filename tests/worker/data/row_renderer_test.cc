// Rows to tokens, and which of them count, with tokenizers as models have them.
#include "worker/data/row_renderer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/worker/data/model_tokenizers.h"
#include "worker/data/bad_rows.h"

namespace espalier {
namespace {

using testing::HasSubstr;

// The tokens as text, special ones spelled out, with what counts between brackets.
std::string Shown(const Tokenizer& tokenizer, const RenderedRow& row) {
  std::string shown;
  size_t run = 0;
  for (size_t i = 0; i <= row.ids.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    if (run < row.counted.size() && row.counted[run].end == at) {
      shown += "]";
      ++run;
    }
    if (run < row.counted.size() && row.counted[run].begin == at) shown += "[";
    if (i < row.ids.size()) shown += std::string(*tokenizer.Piece(row.ids[i]));
  }
  return shown;
}

std::string Rendered(const Tokenizer& tokenizer, const FineTuneRow& row,
                     RowRenderer::Options options = {}) {
  const auto renderer = RowRenderer::Create(tokenizer, options);
  if (!renderer.ok()) return std::string(renderer.status().message());
  const auto rendered = renderer->Render(row);
  if (!rendered.ok()) return std::string(rendered.status().message());
  return Shown(tokenizer, *rendered);
}

constexpr RowRenderer::Options kAnswers{.loss = LossOn::kCompletions};

FineTuneRow Chat(const std::vector<std::pair<std::string, std::string>>& turns) {
  auto messages = nlohmann::ordered_json::array();
  for (const auto& [role, content] : turns) {
    messages.push_back({{"role", role}, {"content", content}});
  }
  return ChatRow{{{"messages", messages}}};
}

FineTuneRow TwoAnswers() {
  return Chat({{"user", "one?"}, {"assistant", "It is 1."}, {"user", "two?"}, {"assistant", "2"}});
}

TEST(RowRenderer, OfAConversationAllCounts) {
  EXPECT_EQ(Rendered(Llama3(), Chat({{"user", "a"}, {"assistant", "b"}})),
            "[<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\na<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\nb<|eot_id|>]");
}

TEST(RowRenderer, OrOnlyTheAnswersWithWhatEndsThem) {
  EXPECT_EQ(Rendered(Llama3(), TwoAnswers(), kAnswers),
            "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\none?<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n[It is 1.<|eot_id|>]"
            "<|start_header_id|>user<|end_header_id|>\n\ntwo?<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n[2<|eot_id|>]");
}

TEST(RowRenderer, TheLineBreakBehindAnEndDoesNotCount) {
  EXPECT_THAT(Rendered(SmolLm(), TwoAnswers(), kAnswers),
              HasSubstr("<|im_start|>assistant\n[It is 1.<|im_end|>]\n<|im_start|>user\ntwo?"
                        "<|im_end|>\n<|im_start|>assistant\n[2<|im_end|>]\n"));
}

// What a model is asked and what it answers there are the same tokens as in training.
TEST(RowRenderer, NoTokenLiesAcrossABorder) {
  for (const Tokenizer* tokenizer : {&Llama3(), &SmolLm()}) {
    const auto row = Chat(
        {{"user", "a"}, {"assistant", "\n\n the answer"}, {"user", "b"}, {"assistant", "ccc"}});
    const auto renderer = RowRenderer::Create(*tokenizer, kAnswers);
    const auto rendered = renderer->Render(row);
    ASSERT_TRUE(rendered.ok()) << rendered.status();
    const auto chat = ChatTemplate::FromTokenizerConfig(tokenizer->ConfigJson());
    auto asked = std::get<ChatRow>(row).variables;
    while (asked["messages"].size() > 1) asked["messages"].erase(1);
    std::vector<int32_t> prompt;
    ASSERT_TRUE(tokenizer
                    ->Encode(*chat->Render(
                                 asked, {.add_generation_prompt = true, .now = absl::UnixEpoch()}),
                             prompt, {.special_tokens = true})
                    .ok());
    ASSERT_GE(rendered->ids.size(), prompt.size());
    EXPECT_TRUE(std::equal(prompt.begin(), prompt.end(), rendered->ids.begin()));
    EXPECT_EQ(rendered->counted.front().begin, static_cast<int64_t>(prompt.size()));
  }
}

TEST(RowRenderer, TheTemplateMayMarkTheAnswers) {
  const auto tokenizer = ModelTokenizer(
      "smollm2-tiny",
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}"
      "{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}{% else %}{{ m.content }}"
      "<|im_end|>{% endif %}\n{% endfor %}",
      "", "<|im_end|>");
  EXPECT_THAT(Rendered(*tokenizer, TwoAnswers(), kAnswers),
              HasSubstr("assistant\n[It is 1.<|im_end|>]"));
}

TEST(RowRenderer, ATextGetsNoSecondBeginning) {
  const std::string framed = "[<|begin_of_text|>abc<|eot_id|>]";
  EXPECT_EQ(Rendered(Llama3(), TextRow{"abc"}), framed);
  EXPECT_EQ(Rendered(Llama3(), TextRow{"<|begin_of_text|>abc"}), framed);
  EXPECT_EQ(Rendered(Llama3(), TextRow{"<|begin_of_text|>abc<|eot_id|>"}), framed);
}

TEST(RowRenderer, ATextThatEndsGetsNoSecondEnd) {
  EXPECT_EQ(Rendered(SmolLm(), TextRow{"<|im_start|>a<|im_end|>\n"}),
            "[<|im_start|>a<|im_end|>\n]");
}

TEST(RowRenderer, APairHasItsBeginningAndEnd) {
  EXPECT_EQ(Rendered(Llama3(), PairRow{"a", " b"}, kAnswers), "<|begin_of_text|>a[ b<|eot_id|>]");
  EXPECT_EQ(Rendered(Llama3(), PairRow{"a", " b"}), "[<|begin_of_text|>a b<|eot_id|>]");
}

// What somebody writes must not end their turn.
TEST(RowRenderer, AnInstructionIsAConversation) {
  EXPECT_THAT(Rendered(SmolLm(), InstructionRow{"", "Add.", "1 2", "3"}, kAnswers),
              HasSubstr("<|im_start|>user\nAdd.\n\n1 2<|im_end|>\n<|im_start|>assistant\n"
                        "[3<|im_end|>]\n"));
}

TEST(RowRenderer, WithoutATemplateAnInstructionIsAlpacasText) {
  const std::unique_ptr<Tokenizer> bytes = MakeByteTokenizer();
  const std::string text = Rendered(*bytes, InstructionRow{"", "Add.", "1 2", "3"}, kAnswers);
  EXPECT_THAT(text, HasSubstr("further context. Write a response that appropriately completes the "
                              "request.\n\n### Instruction:\nAdd.\n\n### Input:\n1 2\n\n"
                              "### Response:\n[3"));
}

TEST(RowRenderer, WithoutATemplateAConversationIsRefused) {
  const std::unique_ptr<Tokenizer> bytes = MakeByteTokenizer();
  EXPECT_THAT(Rendered(*bytes, TwoAnswers()), HasSubstr("--tokenizer"));
}

TEST(RowRenderer, WhatIsTooLongLosesItsEnd) {
  EXPECT_EQ(Rendered(Llama3(), TextRow{"a b"}, {.max_tokens = 2}), "[<|begin_of_text|>a]");
  EXPECT_THAT(Rendered(Llama3(), TwoAnswers(), {.loss = LossOn::kCompletions, .max_tokens = 4}),
              HasSubstr("answers lie behind its first 4 tokens"));
  EXPECT_THAT(Rendered(Llama3(), TextRow{"a b c"}, {.max_tokens = 2, .long_rows = LongRows::kSkip}),
              HasSubstr("more than --max-tokens 2"));
}

TEST(RowRenderer, AConversationWithoutAnAnswerHasNothingToLearn) {
  const auto renderer = RowRenderer::Create(Llama3(), kAnswers);
  EXPECT_EQ(renderer->Render(Chat({{"user", "a"}})).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(RowRenderer, PartsOfAContentAreItsTextUnlessTheTemplateWritesThem) {
  auto messages = nlohmann::ordered_json::parse(
      R"([{"role": "user", "content": [{"type": "text", "text": "a"},
                                       {"type": "text", "text": "b"}]},
          {"role": "assistant", "content": "c"}])");
  const FineTuneRow row = ChatRow{{{"messages", messages}}};
  EXPECT_THAT(Rendered(SmolLm(), row, kAnswers),
              HasSubstr("<|im_start|>user\nab<|im_end|>\n<|im_start|>assistant\n[c<|im_end|>]"));
  const auto of_parts = ModelTokenizer(
      "smollm2-tiny",
      "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
      "{% for part in m.content %}({{ part.text }}){% endfor %}{% endif %}{% endfor %}",
      "", "<|im_end|>");
  EXPECT_EQ(Rendered(*of_parts, row), "[(a)(b)c]");
}

TEST(RowRenderer, AnEmptyAnswerHasNothingToLearnByItself) {
  const auto row = Chat({{"user", "a"}, {"assistant", ""}, {"user", "b"}, {"assistant", "c"}});
  const auto answers = RowRenderer::Create(SmolLm(), kAnswers);
  const absl::Status status = answers->Render(row).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("message 2, an answer"));
  EXPECT_TRUE(RowRenderer::Create(SmolLm(), {})->Render(row).ok()) << "all of it counts";
}

// Qwen 3's template writes the last answer otherwise than those before it.
TEST(RowRenderer, AnAnswerThatIsWrittenOtherwiseLaterCountsAsItStandsInTheText) {
  const auto tokenizer = ModelTokenizer("smollm2-tiny", "qwen3.jinja", "", "<|im_end|>");
  EXPECT_THAT(Rendered(*tokenizer, TwoAnswers(), kAnswers),
              HasSubstr("<|im_start|>assistant\n[It is 1.<|im_end|>]\n<|im_start|>user"));
}

TEST(RowRenderer, AnswersThatCannotBeToldAreOfTheRow) {
  const auto tokenizer = ModelTokenizer(
      "smollm2-tiny",
      "{% for m in messages %}[{{ m.content }}{% if loop.last %}, last{% endif %}]{% endfor %}", "",
      "<|im_end|>");
  const auto renderer = RowRenderer::Create(*tokenizer, kAnswers);
  const absl::Status status = renderer->Render(TwoAnswers()).status();
  EXPECT_TRUE(IsBadRow(status)) << status;
}

TEST(RowRenderer, WhatATemplateRefusesIsMalformed) {
  const auto tokenizer =
      ModelTokenizer("smollm2-tiny", "{{ raise_exception('no, thanks') }}", "", "<|im_end|>");
  const auto renderer = RowRenderer::Create(*tokenizer, {});
  const auto row = renderer->Render(TwoAnswers());
  EXPECT_EQ(row.status().code(), absl::StatusCode::kInvalidArgument) << row.status();
  EXPECT_THAT(std::string(row.status().message()), HasSubstr("no, thanks"));
}

// SentencePiece's tokenizers put a mark before texts, which a part of a text is not.
TEST(RowRenderer, MarksOfSentencePieceStayWhereTheWholeTextHasThem) {
  const auto tokenizer = ModelTokenizer(
      "llama2",
      "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} "
      "[/INST]{% else %} {{ m.content }} {{ eos_token }}{% endif %}{% endfor %}",
      "<s>", "</s>");
  const auto row = Chat({{"user", "a"}, {"assistant", "b"}});
  const auto all = RowRenderer::Create(*tokenizer, {})->Render(row);
  const auto answers = RowRenderer::Create(*tokenizer, kAnswers)->Render(row);
  ASSERT_TRUE(all.ok() && answers.ok()) << all.status() << answers.status();
  EXPECT_EQ(all->ids, answers->ids);
}

TEST(RowRenderer, CompletionsOfSentencePieceGoOnWithoutAMark) {
  for (const char* name : {"llama2", "mistral"}) {
    const auto tokenizer = ModelTokenizer(name, "", "<s>", "</s>");
    for (const auto& [prompt, completion] :
         {std::pair{"a", " b"}, {"a\n", "b"}, {"### Response:\n", "{}"}, {"", "b c"}}) {
      const auto row = RowRenderer::Create(*tokenizer, {})->Render(PairRow{prompt, completion});
      ASSERT_TRUE(row.ok()) << row.status();
      std::vector<int32_t> whole;
      ASSERT_TRUE(tokenizer->Encode(std::string(prompt) + completion, whole, {.frame = true}).ok());
      whole.push_back(tokenizer->end_of_text());
      EXPECT_EQ(row->ids, whole) << name << " '" << prompt << "' '" << completion << "'";
    }
  }
}

}  // namespace
}  // namespace espalier
