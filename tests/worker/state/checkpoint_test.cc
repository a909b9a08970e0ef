#include "worker/state/checkpoint.h"

#include <gtest/gtest.h>

#include <limits>

#include "common/base/sha256.h"
#include "tests/worker/support/checkpoint_fixture.h"
#include "tests/worker/support/test_folder.h"

namespace espalier {
namespace {

TEST(Sha256, GivesThePublishedDigests) {
  EXPECT_EQ(Sha256Hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Sha256Hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Checkpoint, WhatIsWrittenIsReadBack) {
  const TestFolder folder;
  const TinyState state(5);
  const auto status = WriteCheckpointFiles(PosixFileSystem(), folder / "c", state.Content());
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(
      Names(folder / "c"),
      (std::set<std::string>{"config.json", "manifest.json", "model.safetensors",
                             "optimizer.safetensors", "tokenizer.json", "trainer_state.json"}));
  const auto read = Checkpoint::Open(PosixFileSystem(), folder / "c");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(state.Equals(*read));
  EXPECT_EQ(read->manifest().validation_loss, 10.0 / 6);
  EXPECT_EQ(read->model().metadata().at("format"), "pt") << "transformers asks for it";
  EXPECT_EQ(read->Text("generation_config.json").status().code(), absl::StatusCode::kNotFound);
}

TEST(Checkpoint, AnyChangedByteOfAnyFileIsFound) {
  const TestFolder folder;
  ASSERT_TRUE(WriteCheckpointFiles(PosixFileSystem(), folder / "c", TinyState(5).Content()).ok());
  for (const std::string& name : Names(folder / "c")) {
    const std::string path = folder / "c/" + name;
    for (size_t at = 0; at < ReadText(path).size(); at += 7) {
      FlipByte(path, at);
      const auto read = Checkpoint::Open(PosixFileSystem(), folder / "c");
      FlipByte(path, at);
      // White space of the manifest is the one thing that carries no meaning.
      if (name == "manifest.json" && read.ok()) {
        ASSERT_TRUE(TinyState(5).Equals(*read));
        continue;
      }
      ASSERT_EQ(read.status().code(), absl::StatusCode::kDataLoss) << name << " " << at;
      EXPECT_NE(read.status().message().find(name), absl::string_view::npos) << read.status();
    }
  }
  EXPECT_TRUE(Checkpoint::Open(PosixFileSystem(), folder / "c").ok());
}

TEST(Checkpoint, AMissingOrCutFileIsFoundByItsSizeAlone) {
  const TestFolder folder;
  for (const std::string name :
       {"model.safetensors", "optimizer.safetensors", "config.json", "trainer_state.json"}) {
    const std::string c = folder / ("c-" + name);
    ASSERT_TRUE(WriteCheckpointFiles(PosixFileSystem(), c, TinyState(5).Content()).ok());
    ASSERT_TRUE(CheckCheckpoint(PosixFileSystem(), c, CheckpointCheck::kSizes).ok());
    std::filesystem::resize_file(c + "/" + name, 3);
    EXPECT_FALSE(CheckCheckpoint(PosixFileSystem(), c, CheckpointCheck::kSizes).ok()) << name;
    std::filesystem::remove(c + "/" + name);
    EXPECT_FALSE(CheckCheckpoint(PosixFileSystem(), c, CheckpointCheck::kSizes).ok()) << name;
  }
}

TEST(Checkpoint, AFolderWithoutManifestIsNotACheckpoint) {
  const TestFolder folder;
  EXPECT_EQ(Checkpoint::Open(PosixFileSystem(), folder.path()).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(Checkpoint::Open(PosixFileSystem(), folder / "none").status().code(),
            absl::StatusCode::kNotFound);
}

TEST(Checkpoint, AManifestMustListWhatEveryCheckpointHas) {
  const TestFolder folder;
  folder.Write("manifest.json", CheckpointManifestToJson({.step = Step(1)}));
  const auto status = CheckCheckpoint(PosixFileSystem(), folder.path(), CheckpointCheck::kSizes);
  EXPECT_NE(status.status().message().find("does not list optimizer.safetensors"),
            absl::string_view::npos)
      << status.status();
}

TEST(Checkpoint, AManifestThatLeavesItsFolderIsRefused) {
  const CheckpointManifest manifest{
      .step = Step(1),
      .files = {{.name = "../secret", .bytes = 1, .sha256 = std::string(64, 'a')}}};
  EXPECT_FALSE(CheckpointManifestFromJson(CheckpointManifestToJson(manifest)).ok());
}

TEST(Checkpoint, ValuesMustFitTheirShape) {
  const TestFolder folder;
  TinyState state(1);
  CheckpointContent content = state.Content();
  content.model[0].spec.shape = {2, 3};
  EXPECT_EQ(WriteCheckpointFiles(PosixFileSystem(), folder / "c", content).code(),
            absl::StatusCode::kInvalidArgument);
  content.model.clear();
  EXPECT_EQ(WriteCheckpointFiles(PosixFileSystem(), folder / "c", content).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(Checkpoint, ALossThatIsNoNumberIsNoLoss) {
  const TestFolder folder;
  const TinyState state(3);
  CheckpointContent content = state.Content();
  content.validation_loss = std::numeric_limits<double>::quiet_NaN();
  ASSERT_TRUE(WriteCheckpointFiles(PosixFileSystem(), folder / "c", content).ok());
  const auto read = Checkpoint::Open(PosixFileSystem(), folder / "c");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_FALSE(read->manifest().validation_loss.has_value());
}

TEST(Checkpoint, LoadingIntoAnotherShapeIsRefused) {
  const TestFolder folder;
  ASSERT_TRUE(WriteCheckpointFiles(PosixFileSystem(), folder / "c", TinyState(5).Content()).ok());
  const auto read = Checkpoint::Open(PosixFileSystem(), folder / "c");
  ASSERT_TRUE(read.ok());
  std::vector<float> values(4);
  const auto load = [&](const char* name, TensorType type, std::vector<int64_t> shape) {
    return LoadTensor(read->model(), {name, type, std::move(shape)}, Room(values)).code();
  };
  EXPECT_EQ(load("model.a.weight", TensorType::kF32, {2, 2}), absl::StatusCode::kOk);
  EXPECT_EQ(load("model.a.weight", TensorType::kF32, {4}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(load("model.a.weight", TensorType::kI32, {2, 2}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(load("model.c", TensorType::kF32, {4}), absl::StatusCode::kNotFound);
  values.resize(3);
  EXPECT_EQ(load("model.a.weight", TensorType::kF32, {2, 2}), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace espalier
