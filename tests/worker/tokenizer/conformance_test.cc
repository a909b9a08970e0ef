// Ids and texts are those of Hugging Face's tokenizers (tests/data/tokenizers/README.md).
#include <gtest/gtest.h>

#include "tests/worker/tokenizer/tokenizer_cases.h"
#include "worker/tokenizer/open_tokenizer.h"
#include "worker/tokenizer/stream_decoder.h"

namespace espalier {
namespace {

class Conformance : public testing::TestWithParam<std::string> {
 protected:
  Conformance() {
    auto opened = TokenizerFromJson(TokenizerJson(GetParam()).dump());
    EXPECT_TRUE(opened.ok()) << opened.status();
    if (opened.ok()) tokenizer_ = *std::move(opened);
  }
  void SetUp() override { ASSERT_NE(tokenizer_, nullptr); }

  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_P(Conformance, EncodesAsHuggingFaceDoes) {
  for (const TokenizerCase& one : TokenizerCases(GetParam())) {
    std::vector<int32_t> ids;
    const absl::Status status =
        tokenizer_->Encode(one.text, ids, {.special_tokens = true, .frame = true});
    ASSERT_TRUE(status.ok()) << status << " of " << one.text;
    EXPECT_EQ(ids, one.ids) << one.text;
  }
}

TEST_P(Conformance, DecodesAsHuggingFaceDoes) {
  for (const TokenizerCase& one : TokenizerCases(GetParam())) {
    EXPECT_EQ(*tokenizer_->DecodeText(one.ids, {.special_tokens = true}), one.decoded);
    if (one.decoded_no_special.empty()) continue;
    EXPECT_EQ(*tokenizer_->DecodeText(one.ids), one.decoded_no_special);
  }
}

TEST_P(Conformance, DecodesTheSameTokenByToken) {
  for (const TokenizerCase& one : TokenizerCases(GetParam())) {
    StreamDecoder decoder(*tokenizer_, {.special_tokens = true});
    std::string text;
    for (const int32_t id : one.ids) text += *decoder.Append(id);
    EXPECT_EQ(text + decoder.Finish(), one.decoded);
  }
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, Conformance, testing::ValuesIn(TokenizerNames()),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

}  // namespace
}  // namespace espalier
