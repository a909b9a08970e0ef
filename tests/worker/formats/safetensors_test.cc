#include "worker/formats/safetensors.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"

namespace espalier {
namespace {

std::string Write(const std::vector<TensorSpec>& specs, const std::string& data,
                  const StringMap& metadata = {}) {
  std::string file;
  auto writer = SafetensorsWriter::Create(specs, metadata, [&](absl::Span<const std::byte> bytes) {
    file.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return absl::OkStatus();
  });
  EXPECT_TRUE(writer.ok()) << writer.status();
  for (char c : data) EXPECT_TRUE(writer->Append(AsBytes(absl::MakeConstSpan(&c, 1))).ok());
  EXPECT_TRUE(writer->Finish().ok());
  return file;
}

absl::StatusOr<Safetensors> Parse(const std::string& file) {
  return Safetensors::Parse(AsBytes(absl::MakeConstSpan(file.data(), file.size())),
                            "t.safetensors");
}

// A file with this header text and so many bytes of data.
std::string Raw(const std::string& header, size_t data_bytes) {
  const uint64_t length = header.size();
  std::string file(reinterpret_cast<const char*>(&length), 8);
  return file + header + std::string(data_bytes, 'x');
}

std::string Text(absl::Span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST(Safetensors, WhatIsWrittenIsReadBack) {
  const std::vector<TensorSpec> specs = {{"weight", TensorType::kF32, {1, 2}},
                                         {"empty", TensorType::kI64, {0, 7}},
                                         {"scalar", TensorType::kBF16, {}},
                                         {"bytes", TensorType::kU8, {3}}};
  const std::string file = Write(specs, "12345678abXYZ", {{"format", "pt"}});
  const auto read = Parse(file);
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(read->tensors().size(), 4u);
  for (const TensorSpec& spec : specs) ASSERT_TRUE(read->Get(spec).ok()) << spec.name;
  EXPECT_EQ(Text(read->Find("weight")->bytes), "12345678");
  EXPECT_EQ(Text(read->Find("scalar")->bytes), "ab");
  EXPECT_EQ(Text(read->Find("bytes")->bytes), "XYZ");
  EXPECT_EQ(read->metadata().at("format"), "pt");
  EXPECT_EQ((file.size() - 13) % 8, 0u) << "the data must start aligned";
}

TEST(Safetensors, AnEmptyFileOfTensorsIsValid) {
  const std::string file = Write({}, "");
  ASSERT_TRUE(Parse(file).ok());
  EXPECT_TRUE(Parse(file)->tensors().empty());
}

TEST(Safetensors, AWrongTypeOrShapeNamesBoth) {
  const std::string file = Write({{"w", TensorType::kF32, {2}}}, "12345678");
  const auto read = Parse(file);
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->Get({"v", TensorType::kF32, {2}}).status().code(), absl::StatusCode::kNotFound);
  const absl::Status status = read->Get({"w", TensorType::kF16, {2, 2}}).status();
  EXPECT_EQ(status.message(), "t.safetensors: tensor w is F32 [2]; wanted F16 [2, 2]");
}

struct BadHeader {
  const char* name;
  const char* header;
  size_t data_bytes;
  const char* message;
};

class HostileHeader : public testing::TestWithParam<BadHeader> {};

TEST_P(HostileHeader, IsRefusedWithAReason) {
  const auto read = Parse(Raw(GetParam().header, GetParam().data_bytes));
  ASSERT_FALSE(read.ok());
  EXPECT_NE(read.status().message().find(GetParam().message), absl::string_view::npos)
      << read.status();
}

INSTANTIATE_TEST_SUITE_P(
    Safetensors, HostileHeader,
    testing::ValuesIn<BadHeader>({
        {"NotAnObject", "[1]", 0, "does not start with '{'"},
        {"Empty", "", 0, "does not start with '{'"},
        {"Cut", R"({"a":{"dtype":"U8")", 0, "not valid JSON"},
        {"Trailing", R"({} {})", 0, "not valid JSON"},
        {"DeepNesting", R"({"a":{"shape":[[[[[[[[]]]]]]]]}})", 0, "unexpected array"},
        {"DeepObjects", R"({"a":{"dtype":{"b":{}}}})", 0, "unexpected object"},
        {"UnknownKey", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":1}})", 1,
         "a.x: unknown key"},
        {"MissingKey", R"({"a":{"dtype":"U8","shape":[1]}})", 1, "needs dtype, shape"},
        {"UnknownType", R"({"a":{"dtype":"F7","shape":[1],"data_offsets":[0,1]}})", 1,
         "unknown dtype 'F7'"},
        {"TwiceTheSameTensor",
         R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
         R"("a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
         2, "a: the key appears twice"},
        {"TwiceTheSameKey", R"({"a":{"dtype":"U8","dtype":"U8","shape":[1]}})", 1, "twice"},
        {"NegativeDimension", R"({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})", 1,
         "negative"},
        {"Fraction", R"({"a":{"dtype":"U8","shape":[1.5],"data_offsets":[0,1]}})", 1,
         "not an integer"},
        {"HugeNumber",
         R"({"a":{"dtype":"U8","shape":[99999999999999999999],"data_offsets":[0,1]}})", 1,
         "not an integer that fits"},
        {"ShapeOverflow",
         R"({"a":{"dtype":"U8","shape":[4294967296,4294967296,16],"data_offsets":[0,0]}})", 0,
         "impossible shape"},
        {"ZeroTimesOverflow",
         R"({"a":{"dtype":"F64","shape":[9223372036854775807,2,0],"data_offsets":[0,0]}})", 0,
         "impossible shape"},
        {"SizeOfAnotherShape", R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4,
         "takes 8 bytes"},
        {"EndBeforeBegin", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,0]}})", 1,
         "data_offsets"},
        {"OneOffset", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1]}})", 1,
         "needs two numbers"},
        {"Gap", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", 2, "starts at 1"},
        {"Overlap",
         R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
         R"("b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
         3, "starts at 1"},
        {"OutsideTheFile", R"({"a":{"dtype":"U8","shape":[9],"data_offsets":[0,9]}})", 8,
         "truncated"},
        {"BytesOfNobody", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 2,
         "belong to no tensor"},
        {"MetadataNumber", R"({"__metadata__":{"a":1}})", 0, "unexpected number"},
        {"BadUtf8", "{\"\xff\":{}}", 0, "not valid JSON"},
    }),
    [](const auto& info) { return info.param.name; });

TEST(Safetensors, ALengthBeyondTheFileIsATruncatedFile) {
  std::string file = Write({{"w", TensorType::kF32, {2}}}, "12345678");
  for (size_t size = 0; size < file.size(); ++size) {
    EXPECT_FALSE(Parse(file.substr(0, size)).ok()) << size;
  }
  std::memset(file.data(), 0xff, 8);
  EXPECT_FALSE(Parse(file).ok());
}

TEST(Safetensors, OpenMapsAFileAndRefusesACutOne) {
  const std::string path = absl::StrCat(testing::TempDir(), "/map-", getpid(), ".safetensors");
  const std::string file = Write({{"w", TensorType::kF32, {2}}}, "12345678");
  std::ofstream(path) << file;
  const auto opened = Safetensors::Open(path);
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(Text(opened->Find("w")->bytes), "12345678");
  std::filesystem::resize_file(path, file.size() - 1);
  EXPECT_EQ(Safetensors::Open(path).status().code(), absl::StatusCode::kDataLoss);
  std::filesystem::resize_file(path, 0);
  EXPECT_FALSE(Safetensors::Open(path).ok());
  std::filesystem::remove(path);
  EXPECT_EQ(Safetensors::Open(path).status().code(), absl::StatusCode::kNotFound);
}

TEST(SafetensorsWriter, RefusesBytesThatDoNotFitTheHeader) {
  const auto ignore = [](absl::Span<const std::byte>) { return absl::OkStatus(); };
  auto writer = SafetensorsWriter::Create(
      {{"a", TensorType::kU8, {2}}, {"b", TensorType::kU8, {1}}}, {}, ignore);
  ASSERT_TRUE(writer.ok());
  const std::vector<std::byte> three(3);
  EXPECT_EQ(writer->Append(three).code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(writer->Finish().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(writer->Append(absl::MakeConstSpan(three).first(2)).ok());
  EXPECT_TRUE(writer->Append(absl::MakeConstSpan(three).first(1)).ok());
  EXPECT_TRUE(writer->Finish().ok());
  EXPECT_EQ(writer->Append(three).code(), absl::StatusCode::kOutOfRange);
}

TEST(SafetensorsWriter, RefusesNamesAndShapesTheFormatDoesNotHave) {
  const auto ignore = [](absl::Span<const std::byte>) { return absl::OkStatus(); };
  const TensorSpec good{"a", TensorType::kU8, {1}};
  for (const TensorSpec& bad : std::vector<TensorSpec>{{"a", TensorType::kU8, {1}},
                                                       {"", TensorType::kU8, {1}},
                                                       {"__metadata__", TensorType::kU8, {1}},
                                                       {"b", TensorType::kU8, {-1}},
                                                       {"\xff", TensorType::kU8, {1}}}) {
    EXPECT_EQ(SafetensorsWriter::Create({good, bad}, {}, ignore).status().code(),
              absl::StatusCode::kInvalidArgument)
        << bad.name;
  }
}

TEST(SafetensorsWriter, AFailingSinkEndsTheWriting) {
  const auto full = [](absl::Span<const std::byte>) {
    return absl::ResourceExhaustedError("full");
  };
  EXPECT_EQ(SafetensorsWriter::Create({}, {}, full).status().code(),
            absl::StatusCode::kResourceExhausted);
}

// Whatever a file holds, reading it ends in a status or in tensors that lie inside it.
void ExpectHarmless(const std::string& file) {
  const auto read = Parse(file);
  if (!read.ok()) return;
  const auto* begin = reinterpret_cast<const std::byte*>(file.data());
  for (const TensorView& tensor : read->tensors()) {
    ASSERT_GE(tensor.bytes.data(), begin);
    ASSERT_LE(tensor.bytes.data() + tensor.bytes.size(), begin + file.size());
    ASSERT_EQ(static_cast<int64_t>(tensor.bytes.size()), *TensorBytes(tensor.spec));
  }
}

TEST(SafetensorsFuzz, MutatedFilesDoNoHarm) {
  const std::string good =
      Write({{"model.a", TensorType::kF32, {2, 3}}, {"b", TensorType::kU8, {5}}},
            std::string(29, 'd'), {{"format", "pt"}});
  const std::string alphabet = "{}[]\",:0123456789-eE.aUF8\\u\xff \n";
  SplitMix64 random(20240607);
  for (int round = 0; round < 20000; ++round) {
    std::string file = good;
    for (uint64_t edits = 1 + random.Below(4); edits > 0; --edits) {
      const size_t at = random.Below(file.size());
      switch (random.Below(4)) {
        case 0:
          file[at] = static_cast<char>(random.Next());
          break;
        case 1:
          file[at] = alphabet[random.Below(alphabet.size())];
          break;
        case 2:
          file.erase(at, random.Below(8));
          break;
        case 3:
          file.insert(at, 1 + random.Below(6), alphabet[random.Below(alphabet.size())]);
          break;
      }
      if (file.empty()) break;
    }
    ASSERT_NO_FATAL_FAILURE(ExpectHarmless(file)) << "round " << round;
  }
}

}  // namespace
}  // namespace espalier
