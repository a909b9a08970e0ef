// What is written is a GGUF file by the strictest reading, and what none can hold is refused.
#include "worker/formats/gguf.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/worker/support/gguf_file.h"
#include "worker/formats/safetensors.h"

namespace espalier {
namespace {

using Sink = GgufWriter::Sink;

Sink To(std::string& file) {
  return [&file](absl::Span<const std::byte> bytes) {
    file.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return absl::OkStatus();
  };
}

absl::Span<const std::byte> Bytes(const std::string& text) {
  return AsBytes(absl::MakeConstSpan(text.data(), text.size()));
}

TEST(Gguf, WhatIsWrittenIsReadBack) {
  const GgufFacts facts = {{"flag", true},
                           {"count", uint32_t{7}},
                           {"real", 0.5F},
                           {"text", std::string("ä\0b", 4)},
                           {"ids", std::vector<int32_t>{-1, 2}},
                           {"scores", std::vector<float>{0.25F}},
                           {"words", std::vector<std::string>{"a", "", "bc"}},
                           {"none", std::vector<std::string>{}}};
  std::string file;
  auto writer = GgufWriter::Create(facts,
                                   {{"matrix", GgufType::kF16, {2, 3}},
                                    {"blocks", GgufType::kQ8_0, {2, 32}},
                                    {"row", GgufType::kF32, {2}}},
                                   To(file));
  ASSERT_TRUE(writer.ok()) << writer.status();
  const std::string blocks(68, 'q');
  for (const std::string& bytes : {std::string("abcdefghijkl"), blocks, std::string("ABCDEFGH")}) {
    ASSERT_TRUE(writer->Append(Bytes(bytes)).ok());
  }
  ASSERT_TRUE(writer->Finish().ok());
  const auto read = GgufFile::Parse(file);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->facts().size(), facts.size());
  for (const auto& [name, value] : facts) EXPECT_EQ(read->facts().at(name), value) << name;
  EXPECT_EQ(read->names(), (std::vector<std::string>{"matrix", "blocks", "row"}));
  EXPECT_EQ(read->tensor("matrix").dimensions, (std::vector<uint64_t>{3, 2}));
  EXPECT_EQ(read->tensor("matrix").bytes, "abcdefghijkl");
  EXPECT_EQ(read->tensor("blocks").bytes, blocks);
  EXPECT_EQ(read->tensor("row").bytes, "ABCDEFGH");
}

// The reader of the tests would see it.
TEST(Gguf, NoByteOfTheHeadAndNoneOfThePaddingMayBeAnother) {
  std::string file;
  auto writer =
      GgufWriter::Create({{"count", uint32_t{7}}}, {{"row", GgufType::kF32, {2}}}, To(file));
  ASSERT_TRUE(writer.ok() && writer->Append(Bytes("ABCDEFGH")).ok());
  ASSERT_TRUE(GgufFile::Parse(file).ok());
  EXPECT_EQ(file.size() % 32, 0U);
  for (size_t cut = 0; cut < file.size(); ++cut) {
    EXPECT_FALSE(GgufFile::Parse(file.substr(0, cut)).ok()) << cut;
  }
  file.back() = 'x';
  EXPECT_FALSE(GgufFile::Parse(file).ok());
}

TEST(Gguf, NamesAreThoseThatLlamaCppReads) {
  const std::vector<std::vector<GgufTensor>> wrong = {
      {{"", GgufType::kF32, {1}}},
      {{std::string(64, 'n'), GgufType::kF32, {1}}},
      {{"twice", GgufType::kF32, {1}}, {"twice", GgufType::kF32, {1}}}};
  std::string file;
  for (const auto& tensors : wrong) {
    EXPECT_EQ(GgufWriter::Create({}, tensors, To(file)).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  EXPECT_FALSE(GgufWriter::Create({{"a", true}, {"a", true}}, {}, To(file)).ok());
  EXPECT_EQ(file, "") << "a refused file was begun";
  EXPECT_TRUE(GgufWriter::Create({}, {{std::string(63, 'n'), GgufType::kF32, {1}}}, To(file)).ok());
}

TEST(Gguf, ShapesAreThoseThatTheTypeHolds) {
  EXPECT_EQ(*GgufBytes({"t", GgufType::kF32, {2, 3}}), 24);
  EXPECT_EQ(*GgufBytes({"t", GgufType::kBF16, {2, 3, 1, 1}}), 12);
  EXPECT_EQ(*GgufBytes({"t", GgufType::kQ8_0, {3, 64}}), 6 * 34);
  const int64_t large = int64_t{1} << 62;
  for (const GgufTensor& wrong : std::vector<GgufTensor>{{"t", GgufType::kF32, {}},
                                                         {"t", GgufType::kF32, {1, 1, 1, 1, 1}},
                                                         {"t", GgufType::kF32, {2, 0}},
                                                         {"t", GgufType::kF32, {large}},
                                                         {"t", GgufType::kQ8_0, {64, 31}}}) {
    EXPECT_EQ(GgufBytes(wrong).status().code(), absl::StatusCode::kInvalidArgument)
        << ShapeText(wrong.shape);
  }
}

TEST(Gguf, ATensorIsWrittenWholeAndInItsTurn) {
  std::string file;
  auto writer = GgufWriter::Create({}, {{"row", GgufType::kF32, {1}}}, To(file));
  ASSERT_TRUE(writer.ok()) << writer.status();
  EXPECT_EQ(writer->Finish().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(writer->Append(Bytes("abc")).code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(writer->Append(Bytes("abcde")).code(), absl::StatusCode::kOutOfRange);
  EXPECT_TRUE(writer->Append(Bytes("abcd")).ok());
  EXPECT_EQ(writer->Append(Bytes("abcd")).code(), absl::StatusCode::kOutOfRange);
  EXPECT_TRUE(writer->Finish().ok());
}

TEST(Gguf, AFailureOfTheSinkIsPassedOn) {
  const absl::Status full = absl::ResourceExhaustedError("the disk is full");
  EXPECT_EQ(GgufWriter::Create({}, {}, [&](auto) { return full; }).status(), full);
}

}  // namespace
}  // namespace espalier
