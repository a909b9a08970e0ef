// Random texts, random bytes and long words: every byte comes back, in time.
#include <gtest/gtest.h>

#include <random>

#include "tests/worker/tokenizer/tokenizer_cases.h"
#include "worker/tokenizer/open_tokenizer.h"
#include "worker/tokenizer/stream_decoder.h"
#include "worker/tokenizer/unicode_text.h"

namespace espalier {
namespace {

// Byte-level tokenizers that change nothing before they encode.
constexpr const char* kLossless[] = {"gpt2-tiny", "llama-tiny", "smollm2-tiny", "o200k"};

std::unique_ptr<Tokenizer> Open(const std::string& name) {
  auto opened = TokenizerFromJson(TokenizerJson(name).dump());
  EXPECT_TRUE(opened.ok()) << opened.status();
  return *std::move(opened);
}

std::vector<int32_t> Encoded(const Tokenizer& tokenizer, absl::string_view text,
                             EncodeOptions options = {}) {
  std::vector<int32_t> ids;
  const absl::Status status = tokenizer.Encode(text, ids, options);
  EXPECT_TRUE(status.ok()) << status;
  return ids;
}

// Words, white space, special tokens and arbitrary characters; some bytes are no UTF-8.
std::string RandomText(std::mt19937_64& random) {
  static const std::vector<std::string> parts{" ",
                                              "  ",
                                              "\n",
                                              "\r\n",
                                              "\t",
                                              "the",
                                              "I'll",
                                              "CAN'T",
                                              "1234",
                                              "...",
                                              "é",
                                              "e\u0301",
                                              "\u00a0",
                                              "\u3000",
                                              "世界",
                                              "🚀",
                                              "\xff",
                                              "\xe2\x82",
                                              "\xf0",
                                              "\xc0\xaf",
                                              "\xed\xa0\x80",
                                              "<|endoftext|>",
                                              "<|im_start|>",
                                              "<|",
                                              "\u0085",
                                              "\u200b"};
  std::string text;
  for (uint64_t left = random() % 30; left > 0; --left) {
    if (random() % 4 == 0) {
      text.push_back(static_cast<char>(random()));
    } else {
      text += parts[random() % parts.size()];
    }
  }
  return text;
}

TEST(RoundTrip, AnyBytesComeBack) {
  for (const char* name : kLossless) {
    const std::unique_ptr<Tokenizer> tokenizer = Open(name);
    std::mt19937_64 random(7);
    for (int i = 0; i < 2000; ++i) {
      const std::string text = RandomText(random);
      for (const bool special : {false, true}) {
        const std::vector<int32_t> ids = Encoded(*tokenizer, text, {.special_tokens = special});
        ASSERT_EQ(*tokenizer->Decode(ids, {.special_tokens = true}), text) << name << " " << i;
      }
    }
  }
}

TEST(RoundTrip, StreamedTextIsTheTextWithReplacements) {
  for (const char* name : kLossless) {
    const std::unique_ptr<Tokenizer> tokenizer = Open(name);
    std::mt19937_64 random(11);
    for (int i = 0; i < 1000; ++i) {
      const std::string text = RandomText(random);
      StreamDecoder decoder(*tokenizer, {.special_tokens = true});
      std::string streamed;
      for (const int32_t id : Encoded(*tokenizer, text)) {
        const std::string part = *decoder.Append(id);
        ASSERT_TRUE(IsUtf8(part)) << i;
        streamed += part;
      }
      ASSERT_EQ(streamed + decoder.Finish(), WithReplacements(text)) << name << " " << i;
    }
  }
}

TEST(RoundTrip, SpecialTokensInATextAreTextUnlessAskedFor) {
  const std::unique_ptr<Tokenizer> tokenizer = Open("llama-tiny");
  const std::string text = "x<|eot_id|>";
  EXPECT_GT(Encoded(*tokenizer, text).size(), 2U);
  EXPECT_EQ(Encoded(*tokenizer, text, {.special_tokens = true}).back(),
            tokenizer->IdOf("<|eot_id|>"));
}

// Quadratic time would take minutes.
TEST(RoundTrip, TimeIsLinearForTextsWithoutAnyBoundary) {
  constexpr size_t kBytes = 256 << 10;
  for (const std::string unit :
       {"a", "ab", " ", "\n", " \n", "1", "!", "\xff", "é", "<|", "the", "\u0301\u0323"}) {
    std::string text;
    while (text.size() < kBytes) text += unit;
    for (const char* name : {"gpt2-tiny", "llama-tiny", "smollm2-tiny", "o200k", "qwen2-tiny"}) {
      const std::unique_ptr<Tokenizer> tokenizer = Open(name);
      const std::vector<int32_t> ids = Encoded(*tokenizer, text);
      EXPECT_EQ(tokenizer->Decode(ids)->size(), text.size()) << name << " " << unit;
    }
  }
}

std::string Streamed(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  StreamDecoder stream(tokenizer);
  std::string text;
  for (const int32_t id : ids) text += stream.Append(id).value_or("?");
  return text + stream.Finish();
}

// As the decoder Metaspace of tokenizers: wherever they stand in it.
TEST(Decode, OfTheFirstTokenMetaspaceDropsEveryMark) {
  for (const char* scheme : {"always", "first", "never"}) {
    nlohmann::json json = TokenizerJson("unk-metaspace");
    json["decoder"]["prepend_scheme"] = scheme;
    json["model"]["vocab"]["▁x▁y"] = 342;
    json["added_tokens"].push_back({{"id", 343},
                                    {"content", "▁ z"},
                                    {"single_word", false},
                                    {"lstrip", false},
                                    {"rstrip", false},
                                    {"normalized", false},
                                    {"special", false}});
    const auto tokenizer = TokenizerFromJson(json.dump());
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    const bool never = std::string(scheme) == "never";
    struct Case {
      std::vector<std::string> names;
      const char *dropped, *kept;
    };
    for (const auto& [names, dropped, kept] : std::vector<Case>{
             {{"▁▁▁▁", "he"}, "he", "    he"},
             {{"<s>", "▁▁", "▁a"}, " a", "   a"},
             {{"▁x▁y", "▁x▁y"}, "xy x y", " x y x y"},
             {{"he", "▁a"}, "he a", "he a"},
             {{"▁ z", "▁a"}, " z a", "  z a"},
         }) {
      std::vector<int32_t> ids;
      for (const std::string& name : names) ids.push_back((*tokenizer)->IdOf(name).value_or(-1));
      const std::string text = never ? kept : dropped;
      EXPECT_EQ((*tokenizer)->Decode(ids).value_or("?"), text);
      EXPECT_EQ((*tokenizer)->DecodeText(ids).value_or("?"), text);
      EXPECT_EQ(Streamed(**tokenizer, ids), text);
    }
  }
}

}  // namespace
}  // namespace espalier
