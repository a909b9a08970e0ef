#include "worker/data/dataset.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <numeric>

#include "common/base/sha256.h"
#include "tests/worker/support/test_folder.h"
#include "worker/data/shard_writer.h"

namespace espalier {
namespace {

// Writes a folder whose training split is 0, 1, 2 ... (modulo the vocabulary).
TokenManifest WriteData(const std::string& folder, int64_t vocab_size, int64_t tokens,
                        int64_t shard_tokens) {
  std::filesystem::create_directories(folder);
  TokenManifest manifest{.tokenizer = "byte",
                         .vocab_size = vocab_size,
                         .eos_id = vocab_size - 1,
                         .token_bytes = TokenBytesFor(vocab_size)};
  std::vector<int32_t> ids(static_cast<size_t>(tokens));
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i % vocab_size);
  for (const char* name : {kTrainSplit, kValidationSplit}) {
    SplitWriter writer(PosixFileSystem(), {.folder = folder,
                                           .name = name,
                                           .token_bytes = manifest.token_bytes,
                                           .shard_tokens = shard_tokens});
    EXPECT_TRUE(writer.Append(ids).ok());
    EXPECT_TRUE(writer.Finish().ok());
    manifest.splits[name] = writer.split();
  }
  std::ofstream(folder + "/manifest.json") << TokenManifestToJson(manifest);
  return manifest;
}

absl::StatusOr<Dataset> Open(const std::string& folder) { return Dataset::Open(folder, {}); }

TEST(Dataset, ReadsAcrossShardsInEveryWidth) {
  for (int64_t vocab : {256, 257, 65537}) {
    const TestFolder folder;
    WriteData(folder.path(), vocab, 1000, 64);
    const auto data = Open(folder.path());
    ASSERT_TRUE(data.ok()) << data.status();
    const auto row = *data->Tokens("train");
    ASSERT_EQ(row->size(), 1000);
    for (int64_t begin : {0, 1, 63, 64, 65, 500, 800}) {
      std::vector<int64_t> got(200), want(200);
      ASSERT_TRUE(row->Copy(begin, absl::MakeSpan(got)).ok());
      for (size_t i = 0; i < want.size(); ++i) want[i] = (begin + static_cast<int64_t>(i)) % vocab;
      EXPECT_EQ(got, want) << "vocabulary " << vocab << " from " << begin;
    }
    std::vector<int64_t> beyond(2);
    EXPECT_FALSE(row->Copy(999, absl::MakeSpan(beyond)).ok());
    EXPECT_FALSE(row->Copy(-1, absl::MakeSpan(beyond)).ok());
  }
}

TEST(Dataset, SaysWhatIsMissing) {
  const TestFolder folder;
  EXPECT_EQ(Open(folder.path()).status().code(), absl::StatusCode::kNotFound);
  WriteData(folder.path(), 256, 100, 64);
  const auto data = Open(folder.path());
  ASSERT_TRUE(data.ok());
  EXPECT_EQ(data->Tokens("test").status().message(),
            folder.path() + " has no split 'test'; it has: train, validation");
  EXPECT_EQ((*data->Windows("train", 33))->size(), 3);
  EXPECT_EQ(data->Windows("train", 100).status().code(), absl::StatusCode::kFailedPrecondition);
}

struct Damage {
  const char* name;
  void (*apply)(const std::string& folder);
  const char* message;
};

class DamagedData : public testing::TestWithParam<Damage> {};

TEST_P(DamagedData, IsRefusedWithTheNameOfTheShardAndWhatToDo) {
  const TestFolder folder;
  WriteData(folder.path(), 300, 1000, 400);
  ASSERT_TRUE(Open(folder.path()).ok());  // what passed once is not trusted for ever
  GetParam().apply(folder.path());
  const absl::Status status = Open(folder.path()).status();
  ASSERT_FALSE(status.ok());
  for (const char* part : {"train-00001.tokens", GetParam().message, "copy the folder again"}) {
    EXPECT_NE(status.message().find(part), absl::string_view::npos) << part << " not in " << status;
  }
}

std::string Shard(const std::string& folder) { return folder + "/train-00001.tokens"; }

INSTANTIATE_TEST_SUITE_P(
    Dataset, DamagedData,
    testing::ValuesIn<Damage>({
        {"Missing", [](const std::string& f) { std::filesystem::remove(Shard(f)); }, "missing"},
        {"Cut", [](const std::string& f) { std::filesystem::resize_file(Shard(f), 863); }, "(cut)"},
        {"CutInsideItsHeader",
         [](const std::string& f) { std::filesystem::resize_file(Shard(f), 63); }, "is cut"},
        {"Empty", [](const std::string& f) { std::filesystem::resize_file(Shard(f), 0); },
         "is cut"},
        {"TooLong", [](const std::string& f) { std::filesystem::resize_file(Shard(f), 865); },
         "too long"},
        {"OneToken", [](const std::string& f) { FlipByte(Shard(f), 500); }, "was altered"},
        {"LastByte", [](const std::string& f) { FlipByte(Shard(f), 863); }, "was altered"},
        {"Header", [](const std::string& f) { FlipByte(Shard(f), 16); }, "damaged header"},
        {"ReservedBytes", [](const std::string& f) { FlipByte(Shard(f), 40); }, "damaged header"},
        {"NotAShard", [](const std::string& f) { FlipByte(Shard(f), 0); }, "not a shard"},
        {"OfOtherDataWithTheSameSize",
         [](const std::string& f) {
           std::filesystem::copy_file(f + "/train-00000.tokens", Shard(f),
                                      std::filesystem::copy_options::overwrite_existing);
         },
         "was altered"},
        {"OfOtherDataWithAnotherSize",
         [](const std::string& f) {
           std::filesystem::copy_file(f + "/train-00002.tokens", Shard(f),
                                      std::filesystem::copy_options::overwrite_existing);
         },
         "belongs to other data"},
    }),
    [](const auto& info) { return info.param.name; });

TEST(Dataset, AFileThatPassedIsNotHashedAgainUnlessAsked) {
  const TestFolder folder;
  WriteData(folder.path(), 256, 1000, 400);
  int64_t hashed = 0;
  VerifyOptions options{.progress = [&](int64_t done, int64_t) { hashed = done; }};
  ASSERT_TRUE(Dataset::Open(folder.path(), options).ok());
  EXPECT_EQ(hashed, 2 * (1000 + 3 * 64));
  hashed = 0;
  ASSERT_TRUE(Dataset::Open(folder.path(), options).ok());
  EXPECT_EQ(hashed, 0);
  options.verify = VerifyShards::kAll;
  ASSERT_TRUE(Dataset::Open(folder.path(), options).ok());
  EXPECT_EQ(hashed, 2 * (1000 + 3 * 64));
}

// A start over much data may be cut short, by a launch that takes too long or a damaged file.
TEST(Dataset, WhatPassedBeforeAStartThatFailedIsNotHashedAgain) {
  const TestFolder folder;
  WriteData(folder.path(), 256, 1000, 400);
  FlipByte(Shard(folder.path()), 70);
  EXPECT_FALSE(Open(folder.path()).ok());
  FlipByte(Shard(folder.path()), 70);
  int64_t hashed = 0;
  ASSERT_TRUE(
      Dataset::Open(folder.path(), {.progress = [&](int64_t done, int64_t) { hashed = done; }})
          .ok());
  constexpr int64_t kFirstShard = 400 + 64;
  EXPECT_EQ(hashed, 2 * (1000 + 3 * 64) - kFirstShard);
}

TEST(Dataset, ADamagedRecordOfWhatPassedCostsOnlyTime) {
  const TestFolder folder;
  WriteData(folder.path(), 256, 1000, 400);
  for (const char* text : {"", "{", "[]", R"({"passed": [1, {}]})", R"({"passed": 5})"}) {
    folder.Write(".verified.json", text);
    EXPECT_TRUE(Open(folder.path()).ok()) << text;
  }
}

TEST(Dataset, ATokenOutsideTheVocabularyIsRefusedWhenRead) {
  const TestFolder folder;
  TokenManifest manifest = WriteData(folder.path(), 300, 1000, 400);
  manifest.vocab_size = 290;
  manifest.eos_id = 0;
  folder.Write("manifest.json", TokenManifestToJson(manifest));
  const auto data = Open(folder.path());
  ASSERT_TRUE(data.ok()) << data.status();
  std::vector<int64_t> tokens(300);
  const absl::Status status = (*data->Tokens("train"))->Copy(0, absl::MakeSpan(tokens));
  EXPECT_NE(status.message().find("holds token 290"), absl::string_view::npos) << status;
}

TEST(Dataset, TheHashOfTheManifestTellsDataApart) {
  const TestFolder folder;
  WriteData(folder / "a", 256, 1000, 400);
  WriteData(folder / "b", 256, 1000, 400);
  WriteData(folder / "c", 256, 1001, 400);
  const std::string a = Open(folder / "a")->manifest_hash();
  EXPECT_EQ(a, Sha256Hex(ReadText(folder / "a/manifest.json")));
  EXPECT_EQ(a, Open(folder / "b")->manifest_hash());
  EXPECT_NE(a, Open(folder / "c")->manifest_hash());
}

}  // namespace
}  // namespace espalier
