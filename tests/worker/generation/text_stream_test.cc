#include "worker/generation/text_stream.h"

#include <gtest/gtest.h>

namespace espalier {
namespace {

// The pieces that a text comes in, by bytes, and whether it was stopped.
struct Told {
  std::vector<std::string> pieces;
  bool stopped;
  std::string text() const {
    std::string all;
    for (const std::string& piece : pieces) all += piece;
    return all;
  }
};

Told Tell(absl::string_view text, std::vector<std::string> stops) {
  const std::unique_ptr<Tokenizer> bytes = MakeByteTokenizer();
  TextStream stream(*bytes, std::move(stops));
  Told told;
  for (const char byte : text) {
    told.pieces.push_back(stream.Append(static_cast<uint8_t>(byte)));
    if (stream.stopped()) break;
  }
  told.pieces.push_back(stream.Finish());
  told.stopped = stream.stopped();
  return told;
}

TEST(TextStream, EndsBeforeTheFirstStop) {
  EXPECT_EQ(Tell("one END two", {"END"}).text(), "one ");
  EXPECT_EQ(Tell("one two three", {"three", "two"}).text(), "one ");
  EXPECT_EQ(Tell("a\n\nb", {"\n\n"}).text(), "a");
  EXPECT_TRUE(Tell("x", {"x"}).stopped);
}

TEST(TextStream, HoldsBackWhatMayBecomeAStopAndNoMore) {
  const Told told = Tell("abab!", {"abac"});
  EXPECT_EQ(told.text(), "abab!");
  EXPECT_EQ(told.pieces, (std::vector<std::string>{"", "", "", "ab", "ab!", ""}));
  EXPECT_FALSE(told.stopped);
}

TEST(TextStream, WhatIsHeldAtTheEndComesThen) { EXPECT_EQ(Tell("sta", {"stamp"}).text(), "sta"); }

TEST(TextStream, CharactersComeWhole) {
  const Told told = Tell("\xc3\xa9t\xc3\xa9", {"\xc3\xa9\xc3\xa9"});
  EXPECT_EQ(told.text(), "\xc3\xa9t\xc3\xa9");
  for (const std::string& piece : told.pieces) EXPECT_NE(piece, "\xc3");
}

TEST(TextStream, WhatTheTokenizerDoesNotKnowIsNoText) {
  const std::unique_ptr<Tokenizer> bytes = MakeByteTokenizer();
  TextStream stream(*bytes);
  EXPECT_EQ(stream.Append(100000), "");
  EXPECT_EQ(stream.Append('a'), "a");
}

}  // namespace
}  // namespace espalier
