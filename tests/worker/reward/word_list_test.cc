#include "worker/reward/word_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/worker/support/test_folder.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> Spelled(const WordList& list) {
  std::vector<std::string> texts;
  for (const WordleWord word : list.words()) texts.push_back(word.text());
  return texts;
}

TEST(WordList, IsReadFromACsvWithAByteOrderMark) {
  const TestFolder folder;
  const std::string path = folder.Write(
      "words.csv", "\xEF\xBB\xBFNumber,Word,Note\r\n1,\"SLATE\",x\r\n2, crane ,\r\n3,SLATE\r\n");
  const auto list = WordList::Load(path);
  ASSERT_TRUE(list.ok()) << list.status();
  EXPECT_THAT(Spelled(*list), ElementsAre("CRANE", "SLATE"));
  EXPECT_EQ(list->left_out(), 0);
}

TEST(WordList, IsReadFromOneWordALineAndLeavesOthersOut) {
  const TestFolder folder;
  const auto list = WordList::Load(
      folder.Write("words", "# common ones\n\ncrane\nAaron\nslate\nit's\ncranes\nslate"));
  ASSERT_TRUE(list.ok()) << list.status();
  EXPECT_THAT(Spelled(*list), ElementsAre("CRANE", "SLATE"));
  EXPECT_EQ(list->left_out(), 3) << "a name, a contraction and a word of six letters";
  EXPECT_TRUE(list->contains(*WordleWord::Parse("SLATE")));
  EXPECT_FALSE(list->contains(*WordleWord::Parse("STALE")));
}

TEST(WordList, WithoutAWordSaysWhatItTakes) {
  const TestFolder folder;
  const auto list = WordList::Load(folder.Write("words", "four\nsixsix\n"));
  EXPECT_EQ(list.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(list.status().message()), HasSubstr("2 lines"));
  EXPECT_THAT(std::string(WordList::Load(folder / "missing").status().message()),
              HasSubstr("missing"));
}

TEST(Vocabulary, RefusesASecretThatNobodyCanGuess) {
  const TestFolder folder;
  const std::string words = folder.Write("words", "CRANE\nSLATE\n");
  const auto vocabulary = Vocabulary::Load(words, folder.Write("secrets", "CRANE\nSTALE\n"));
  EXPECT_THAT(std::string(vocabulary.status().message()), HasSubstr("STALE"));
  EXPECT_THAT(Spelled(Vocabulary::Load(words, "")->secrets), ElementsAre("CRANE", "SLATE"));
}

TEST(Vocabulary, ThatIsShippedIsSound) {
  const std::string folder = ESPALIER_SOURCE_DIR "/configs/data/";
  const auto shipped = Vocabulary::Load(folder + "wordle-words.txt", folder + "wordle-secrets.txt");
  ASSERT_TRUE(shipped.ok()) << shipped.status();
  EXPECT_EQ(shipped->guesses.words().size(), 6722u);
  EXPECT_EQ(shipped->secrets.words().size(), 3563u);
  EXPECT_EQ(shipped->guesses.left_out() + shipped->secrets.left_out(), 0);
}

}  // namespace
}  // namespace espalier
