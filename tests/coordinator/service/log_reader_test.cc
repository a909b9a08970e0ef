#include "coordinator/service/log_reader.h"

#include <gtest/gtest.h>

#include "tests/coordinator/scratch_folder.h"

namespace espalier {
namespace {

constexpr size_t kPlenty = 1 << 20;

TEST(LogReader, GivesGenerationsInOrderAsOneText) {
  ScratchFolder folder;
  folder.Write("gen-0002.log", "third\n");
  folder.Write("gen-0001.log", "first\nsecond\n");
  folder.Write("notes.txt", "no log\n");
  LogReader reader(folder.root(), {});
  EXPECT_EQ(reader.Next(kPlenty), "first\nsecond\n");
  EXPECT_EQ(reader.Next(kPlenty), "third\n");
  EXPECT_EQ(reader.Next(kPlenty), "");
}

TEST(LogReader, FollowsWhatIsWrittenLater) {
  ScratchFolder folder;
  LogReader reader(folder.path("absent"), {});
  EXPECT_EQ(reader.Next(kPlenty), "");
  LogReader late(folder.root(), {});
  folder.Write("gen-0001.log", "one\ntw");
  EXPECT_EQ(late.Next(kPlenty), "one\n");
  EXPECT_EQ(late.Next(kPlenty), "");
  folder.Write("gen-0001.log", "one\ntwo\n");
  EXPECT_EQ(late.Next(kPlenty), "two\n");
  folder.Write("gen-0002.log", "three\n");
  EXPECT_EQ(late.Next(kPlenty), "three\n");
}

TEST(LogReader, AnUnfinishedLineEndsWithItsGenerationOrWithTheJob) {
  ScratchFolder folder;
  folder.Write("gen-0001.log", "cut");
  LogReader reader(folder.root(), {});
  EXPECT_EQ(reader.Next(kPlenty), "");
  folder.Write("gen-0002.log", "again");
  EXPECT_EQ(reader.Next(kPlenty), "cut\n");
  EXPECT_EQ(reader.Next(kPlenty), "");
  EXPECT_EQ(reader.Rest(), "again");
}

TEST(LogReader, AnotherReaderGoesOnFromItsPlace) {
  ScratchFolder folder;
  folder.Write("gen-0001.log", "one\ntwo\nthr");
  LogReader first(folder.root(), {});
  EXPECT_EQ(first.Next(8), "one\ntwo\n");
  EXPECT_EQ(first.Next(kPlenty), "") << "it holds an unfinished line back";
  folder.Write("gen-0001.log", "one\ntwo\nthree\n");
  folder.Write("gen-0002.log", "four\n");
  LogReader second(folder.root(), {}, first.place());
  EXPECT_EQ(second.Next(kPlenty), "three\n");
  EXPECT_EQ(second.Next(kPlenty), "four\n");
  LogReader later(folder.root(), {}, second.place());
  EXPECT_EQ(later.Next(kPlenty), "");
}

TEST(LogReader, APlaceThatIsNotThereAnyMoreIsTheNextOneThatIs) {
  ScratchFolder folder;
  folder.Write("gen-0003.log", "three\n");
  EXPECT_EQ(LogReader(folder.root(), {}, {Generation(2), 100}).Next(kPlenty), "three\n");
  EXPECT_EQ(LogReader(folder.root(), {}, {Generation(3), 100}).Next(kPlenty), "three\n")
      << "shortened since";
  EXPECT_EQ(LogReader(folder.root(), {}, {Generation(3), -1}).Next(kPlenty), "three\n");
}

TEST(LogReader, SelectsARankAndAGeneration) {
  ScratchFolder folder;
  folder.Write("gen-0001.log", "[rank 1] old\n");
  folder.Write("gen-0002.log", "[rank 0] a\n[rank 1] b\nmpirun says\n[rank 11] c\n[rank 1] d\n");
  LogReader reader(folder.root(), {.rank = Rank(1), .generation = Generation(2)});
  EXPECT_EQ(reader.Next(kPlenty), "[rank 1] b\n[rank 1] d\n");
  EXPECT_EQ(reader.Next(kPlenty), "");
}

TEST(LogReader, LooksThroughALongLogInPiecesForTheFewLinesOfARank) {
  ScratchFolder folder;
  std::string all;
  while (all.size() < (16u << 20)) all += "[rank 0] says something that nobody asked for\n";
  folder.Write("gen-0001.log", all + "[rank 1] the one\n");
  LogReader reader(folder.root(), {.rank = Rank(1)});
  int looks = 0;
  std::string text;
  while (text.empty() && !reader.at_end() && looks < 100) {
    text = reader.Next(1 << 16);
    ++looks;
  }
  EXPECT_EQ(text, "[rank 1] the one\n");
  EXPECT_GE(looks, 4) << "one call must not hold up the other streams";
  EXPECT_EQ(reader.Next(1 << 16), "");
  EXPECT_TRUE(reader.at_end());
}

TEST(LogReader, GoesOnWithAShortenedLog) {
  ScratchFolder folder;
  folder.Write("gen-0001.log", "one\ntwo\nthree\nhal");
  LogReader reader(folder.root(), {});
  EXPECT_EQ(reader.Next(kPlenty), "one\ntwo\nthree\n");
  folder.Write("gen-0001.log", "(shortened)\n");
  EXPECT_EQ(reader.Next(kPlenty), "(shortened)\n");
  folder.Write("gen-0001.log", "(shortened)\nfour\n");
  EXPECT_EQ(reader.Next(kPlenty), "four\n");
}

TEST(LogReader, LimitsOneBiteAndLosesNothing) {
  ScratchFolder folder;
  std::string all;
  for (int i = 0; i < 1000; ++i) all += "line " + std::to_string(i) + "\n";
  folder.Write("gen-0001.log", all);
  LogReader reader(folder.root(), {});
  std::string got;
  for (;;) {
    const std::string bite = reader.Next(100);
    if (bite.empty()) break;
    EXPECT_LE(bite.size(), 200u);
    got += bite;
  }
  EXPECT_EQ(got, all);
}

TEST(LogReader, ALineWithoutEndIsNotKeptForEver) {
  ScratchFolder folder;
  folder.Write("gen-0001.log", std::string(200000, 'x'));
  LogReader reader(folder.root(), {});
  EXPECT_GE(reader.Next(1 << 16).size(), 65536u);
}

}  // namespace
}  // namespace espalier
