#include "worker/chat/text_functions.h"

#include <gtest/gtest.h>

#include <random>

namespace espalier {
namespace {

std::string OfTwoLetters(size_t length, std::mt19937_64& random) {
  std::string text;
  for (size_t i = 0; i < length; ++i) text += random() % 4 == 0 ? 'b' : 'a';
  return text;
}

TEST(FindText, IsTheFirstPlaceThatHasIt) {
  std::mt19937_64 random(1);
  int found = 0;
  for (int round = 0; round < 2000; ++round) {
    const std::string text = OfTwoLetters(random() % 300, random);
    std::string wanted = OfTwoLetters(random() % 40, random);
    if (random() % 2 == 0) wanted = text.substr(random() % (text.size() + 1), 17 + random() % 30);
    const size_t at = text.find(wanted);
    ASSERT_EQ(FindText(text, wanted), at) << text << " " << wanted;
    found += at != std::string::npos && wanted.size() > 16 ? 1 : 0;
  }
  EXPECT_GT(found, 500);
}

// As Python's text.split(None, most).
TEST(SplitText, TheLastPartKeepsWhatBehindItIsNotCut) {
  using Parts = std::vector<std::string>;
  for (const auto& [text, most, parts] : {std::tuple{"a b c ", 1, Parts{"a", "b c "}},
                                          {" a  b ", 0, Parts{"a  b "}},
                                          {" a b ", 1, Parts{"a", "b "}},
                                          {"a ", 1, Parts{"a"}},
                                          {"a b ", 2, Parts{"a", "b"}},
                                          {" a b ", -1, Parts{"a", "b"}},
                                          {"a\x1c"
                                           "b\x1f",
                                           -1, Parts{"a", "b"}},
                                          {"  ", 1, Parts{}}}) {
    const auto split = SplitText(text, nullptr, most);
    ASSERT_TRUE(split.ok()) << split.status();
    Parts found;
    for (const Value& part : *split->list()) found.push_back(*part.text());
    EXPECT_EQ(found, parts) << text << most;
  }
}

}  // namespace
}  // namespace espalier
