#include "worker/tokenizer/bpe_trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "worker/tokenizer/open_tokenizer.h"

namespace espalier {
namespace {

using testing::HasSubstr;

BpeTrainer::Trained Trained(const std::vector<std::string>& texts, BpeTrainerOptions options) {
  auto trainer = BpeTrainer::Create(std::move(options));
  EXPECT_TRUE(trainer.ok()) << trainer.status();
  for (const std::string& text : texts) EXPECT_TRUE(trainer->Add(text).ok());
  auto trained = trainer->Train();
  EXPECT_TRUE(trained.ok()) << trained.status();
  return *std::move(trained);
}

std::vector<std::string> RandomTexts() {
  std::mt19937_64 random(3);
  std::vector<std::string> texts;
  for (int i = 0; i < 40; ++i) {
    std::string text;
    for (int k = 0; k < 60; ++k) {
      for (uint64_t left = random() % 7 + 1; left > 0; --left) text += "abcde"[random() % 5];
      text += ' ';
    }
    texts.push_back(std::move(text));
  }
  return texts;
}

// The definition, word by word: all pairs are counted again for every merge.
std::vector<std::pair<std::string, std::string>> NaiveMerges(const std::vector<std::string>& texts,
                                                             size_t merges) {
  std::vector<std::vector<std::string>> words;
  for (const std::string& text : texts) {
    size_t begin = 0;
    while (begin < text.size()) {
      const size_t end = text.find(' ', begin + 1);
      std::vector<std::string> word;
      for (const char c : text.substr(begin, end - begin)) {
        word.push_back(c == ' ' ? "Ġ" : std::string(1, c));
      }
      words.push_back(std::move(word));
      begin = end == std::string::npos ? text.size() : end;
    }
  }
  std::map<std::string, size_t> ids;  // in the order of their letters, then of merging
  for (const char* letter : {"a", "b", "c", "d", "e", "Ġ"}) ids.emplace(letter, ids.size());
  std::vector<std::pair<std::string, std::string>> found;
  while (found.size() < merges) {
    std::map<std::pair<size_t, size_t>, std::pair<int, std::pair<std::string, std::string>>> counts;
    for (const auto& word : words) {
      for (size_t i = 0; i + 1 < word.size(); ++i) {
        auto& [count, names] = counts[{ids[word[i]], ids[word[i + 1]]}];
        ++count;
        names = {word[i], word[i + 1]};
      }
    }
    auto best = counts.begin();
    for (auto it = counts.begin(); it != counts.end(); ++it) {
      if (it->second.first > best->second.first) best = it;
    }
    const auto pair = best->second.second;
    found.push_back(pair);
    ids.try_emplace(pair.first + pair.second, ids.size());
    for (auto& word : words) {
      for (size_t i = 0; i + 1 < word.size(); ++i) {
        if (word[i] != pair.first || word[i + 1] != pair.second) continue;
        word[i] += word[i + 1];
        word.erase(word.begin() + static_cast<ptrdiff_t>(i) + 1);
      }
    }
  }
  return found;
}

TEST(BpeTrainer, MergesWhatTheDefinitionMerges) {
  const std::vector<std::string> texts = RandomTexts();
  const auto trained = Trained(texts, {.vocab_size = 256 + 3 + 60});
  const auto json = nlohmann::json::parse(trained.json);
  std::vector<std::pair<std::string, std::string>> merges;
  for (const auto& merge : json["model"]["merges"]) merges.emplace_back(merge[0], merge[1]);
  EXPECT_EQ(merges, NaiveMerges(texts, merges.size()));
  EXPECT_EQ(trained.vocab_size, 319);
}

TEST(BpeTrainer, TheOrderOfTextsDoesNotMatter) {
  std::vector<std::string> texts = RandomTexts();
  const std::string json = Trained(texts, {.vocab_size = 400}).json;
  std::reverse(texts.begin(), texts.end());
  EXPECT_EQ(Trained(texts, {.vocab_size = 400}).json, json);
}

TEST(BpeTrainer, WhatItLearntEncodesAnyBytes) {
  const auto trained = Trained({"the cat and the dog and the bird", "12345"}, {.min_count = 1});
  const auto tokenizer = TokenizerFromJson(trained.json);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  std::string text = "the bird, 世界\r\n<|im_end|>";
  for (int byte = 0; byte < 256; ++byte) text.push_back(static_cast<char>(byte));
  std::vector<int32_t> ids;
  ASSERT_TRUE((*tokenizer)->Encode(text, ids).ok());
  EXPECT_EQ(*(*tokenizer)->Decode(ids), text);
  EXPECT_LT(ids.size(), text.size());
  EXPECT_EQ((*tokenizer)->end_of_text(), 0);
  EXPECT_EQ((*tokenizer)->IdOf("<|im_end|>"), 2);
  EXPECT_LT(trained.vocab_size, 8192);  // the text has no more pairs
}

TEST(BpeTrainer, ATextWithoutWordsDoesNotHang) {
  const std::string long_word(4 << 20, 'x');
  EXPECT_GT(Trained({long_word}, {}).vocab_size, 259);
}

TEST(BpeTrainer, OptionsThatCannotBeAreRefused) {
  const auto refused = [](BpeTrainerOptions options) {
    return std::string(BpeTrainer::Create(std::move(options)).status().message());
  };
  EXPECT_THAT(refused({.vocab_size = 258}), HasSubstr("259 (all bytes and 3 special tokens)"));
  EXPECT_THAT(refused({.special_tokens = {}}), HasSubstr("no special token"));
  EXPECT_THAT(refused({.special_tokens = {"<a>", "<a>"}}), HasSubstr("<a>"));
  EXPECT_THAT(refused({.min_count = 0}), HasSubstr("got 0"));
  EXPECT_FALSE(BpeTrainer::Create({})->Train().ok());
}

}  // namespace
}  // namespace espalier
