// A replica comes back from a checkpoint as it was, and a checkpoint whose moments are of two
// kinds, or incomplete, is refused by the name of the tensor.
#include "worker/state/replica_checkpoint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/worker/support/test_folder.h"
#include "tests/worker/support/training_world.h"
#include "worker/collective/in_process.h"
#include "worker/formats/decoder_config.h"
#include "worker/model/adapter_files.h"
#include "worker/model/pretrained.h"

namespace espalier {
namespace {

RunIdentity IdentityOf(v1::MomentType moments) {
  RunIdentity identity;
  identity.spec = TinySpec(10);
  identity.spec.mutable_train()->mutable_optimizer()->set_moments(moments);
  identity.data_hash = "made up";
  identity.training_samples = 100;
  return identity;
}

std::unique_ptr<Replica> MakeReplica(const RunIdentity& identity, bool tied) {
  DecoderConfig config = TinyConfig();
  config.tie_word_embeddings = tied;
  return *Replica::Create(config, identity.spec.train(), torch::kCPU);
}

// A replica with values and moments of its own.
std::unique_ptr<Replica> TrainedReplica(const RunIdentity& identity, bool tied) {
  std::unique_ptr<Replica> replica = MakeReplica(identity, tied);
  replica->parameters().Initialize(4, 0.2);
  torch::Tensor gradient = replica->parameters().flat_gradient().Only();
  torch::manual_seed(8);
  gradient.copy_(torch::randn_like(gradient));
  replica->optimizer().Apply({.learning_rate = 0.01});
  replica->counters().updates = replica->optimizer().updates();
  return replica;
}

absl::StatusOr<Checkpoint> Written(const TestFolder& folder, const CheckpointContent& content) {
  const absl::Status status = WriteCheckpointFiles(PosixFileSystem(), folder / "c", content);
  if (!status.ok()) return status;
  return Checkpoint::Open(PosixFileSystem(), folder / "c");
}

// Ranks that skip other steps have parted: their next weights differ.
TEST(Replica, AnotherLossScaleIsAnotherFingerprint) {
  const RunIdentity identity = IdentityOf(v1::MOMENT_TYPE_FP32);
  const std::unique_ptr<Replica> one = TrainedReplica(identity, true);
  const std::unique_ptr<Replica> other = TrainedReplica(identity, true);
  ASSERT_EQ(one->Fingerprint(), other->Fingerprint());
  other->counters().loss_scale.exponent += 1;
  EXPECT_NE(one->Fingerprint(), other->Fingerprint());
}

// Of several blocks, the last one not whole.
std::unique_ptr<Replica> LargerReplica() {
  DecoderConfig config = TinyConfig();
  config.vocab_size = 9001;
  config.hidden_size = 64;
  auto replica =
      Replica::Create(config, IdentityOf(v1::MOMENT_TYPE_FP32).spec.train(), torch::kCPU);
  EXPECT_TRUE(replica.ok()) << replica.status();
  (*replica)->parameters().Initialize(4, 0.2);
  return *std::move(replica);
}

TEST(Replica, TheFingerprintIsTheSameByOneThreadAndByAll) {
  const std::unique_ptr<Replica> replica = LargerReplica();
  const uint64_t all = replica->Fingerprint();
  EXPECT_EQ(replica->Fingerprint(HashThreads::kOne), all);
  const int threads = at::get_num_threads();
  at::set_num_threads(3);
  EXPECT_EQ(replica->Fingerprint(), all);
  at::set_num_threads(threads);
}

TEST(Replica, EveryBitCountsForTheFingerprint) {
  const std::unique_ptr<Replica> replica = LargerReplica();
  const uint64_t before = replica->Fingerprint();
  const torch::Tensor values = replica->parameters().flat().Only();
  auto* words = static_cast<uint32_t*>(values.data_ptr());
  const int64_t last = values.numel() - 1;
  for (const int64_t at : {int64_t{0}, last / 7, last / 2, last - 1, last}) {
    words[at] ^= 1U;
    EXPECT_NE(replica->Fingerprint(), before) << at;
    words[at] ^= 1U;
  }
  EXPECT_EQ(replica->Fingerprint(), before);
}

TEST(ReplicaCheckpoint, BringsBackEveryBit) {
  for (const v1::MomentType moments : {v1::MOMENT_TYPE_FP32, v1::MOMENT_TYPE_INT8}) {
    for (const bool tied : {false, true}) {
      const TestFolder folder;
      const RunIdentity identity = IdentityOf(moments);
      const std::unique_ptr<Replica> replica = TrainedReplica(identity, tied);
      const CheckpointContent content = ContentOf(*replica, identity, std::nullopt);
      const auto checkpoint = Written(folder, content);
      ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
      const std::unique_ptr<Replica> other = MakeReplica(identity, tied);
      const absl::Status loaded = LoadReplica(*checkpoint, identity, *other);
      ASSERT_TRUE(loaded.ok()) << loaded;
      EXPECT_EQ(other->Fingerprint(), replica->Fingerprint());
    }
  }
}

TEST(ReplicaCheckpoint, OfGpt2IsAFolderThatItsClassLoads) {
  const TestFolder folder;
  const RunIdentity identity = IdentityOf(v1::MOMENT_TYPE_FP32);
  DecoderConfig config = TinyConfig();
  config.architecture = Architecture::kGpt2;
  config.kv_heads = config.heads;
  const auto replica = Replica::Create(config, identity.spec.train(), torch::kCPU);
  ASSERT_TRUE(replica.ok()) << replica.status();
  (*replica)->parameters().Initialize(4, 0.2);
  const auto checkpoint = Written(folder, ContentOf(**replica, identity, std::nullopt));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const auto loaded = LoadPretrained(folder / "c", {});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_TRUE(loaded->config == config);
  for (const Parameter& parameter : (*replica)->parameters().all()) {
    EXPECT_TRUE(torch::equal(loaded->parameters.Get(parameter.shape.name), parameter.value))
        << parameter.shape.name;
  }
  const auto other = Replica::Create(config, identity.spec.train(), torch::kCPU);
  ASSERT_TRUE(LoadReplica(*checkpoint, identity, **other).ok());
  EXPECT_EQ((*other)->Fingerprint(), (*replica)->Fingerprint());
  config.max_position_embeddings /= 2;
  EXPECT_FALSE(LoadReplica(*checkpoint, identity,
                           **Replica::Create(config, identity.spec.train(), torch::kCPU))
                   .ok())
      << "positions are learned";
}

// How many positions a model is meant for follows a job's sequences and changes no output.
TEST(ReplicaCheckpoint, ComesBackForMorePositionsAndNotForAnotherFunction) {
  const TestFolder folder;
  const RunIdentity identity = IdentityOf(v1::MOMENT_TYPE_FP32);
  const auto checkpoint =
      Written(folder, ContentOf(*TrainedReplica(identity, true), identity, std::nullopt));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  DecoderConfig config = TinyConfig();
  config.tie_word_embeddings = true;
  config.max_position_embeddings *= 2;
  EXPECT_TRUE(LoadReplica(*checkpoint, identity,
                          **Replica::Create(config, identity.spec.train(), torch::kCPU))
                  .ok());
  config.rope_theta *= 2;
  const absl::Status refused = LoadReplica(
      *checkpoint, identity, **Replica::Create(config, identity.spec.train(), torch::kCPU));
  EXPECT_TRUE(absl::StrContains(refused.message(), "rope_theta")) << refused;
}

// Gradients, and what they lack, are multiplied by the loss scale.
TEST(ReplicaCheckpoint, WhatIsOwedKeepsItsWorthUnderAnotherLossScale) {
  const TestFolder folder;
  const RunIdentity identity = IdentityOf(v1::MOMENT_TYPE_FP32);  // in fp32: scaled by 1
  const auto with_residual = [&] {
    std::unique_ptr<Replica> replica = MakeReplica(identity, true);
    v1::JobSpec int8;
    int8.mutable_parallel()->set_gradient_dtype(v1::GRADIENT_DTYPE_INT8);
    EXPECT_TRUE(replica->PrepareExchange(2, int8).ok());
    return replica;
  };
  const std::unique_ptr<Replica> replica = with_residual(), other = with_residual();
  replica->parameters().Initialize(4, 0.2);
  replica->residual().values().fill_(3);
  replica->counters().loss_scale = LossScale::For(v1::PRECISION_FP16);
  const double scale = replica->counters().loss_scale.value();
  ASSERT_GT(scale, 1);
  const auto checkpoint = Written(folder, ContentOf(*replica, identity, std::nullopt));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const absl::Status loaded = LoadReplica(*checkpoint, identity, *other);
  ASSERT_TRUE(loaded.ok()) << loaded;
  EXPECT_EQ(other->counters().loss_scale.value(), 1);
  EXPECT_TRUE(other->residual().values().eq(3 / scale).all().item<bool>());
}

TEST(ReplicaCheckpoint, AJobWithOtherEvaluationSettingsCountsItsPatienceAnew) {
  const TestFolder folder;
  RunIdentity identity = IdentityOf(v1::MOMENT_TYPE_FP32);
  identity.spec.mutable_evaluate()->set_patience(5);
  const std::unique_ptr<Replica> replica = TrainedReplica(identity, true);
  ValidationProgress& saved = replica->counters().validation;
  saved = {.step = 3, .best_step = 2, .without_gain = 4, .without_gain_at_rate = 4};
  saved.reductions = 1;
  const auto checkpoint = Written(folder, ContentOf(*replica, identity, std::nullopt));
  const auto resumed = [&](const RunIdentity& with) {
    const std::unique_ptr<Replica> other = MakeReplica(with, true);
    EXPECT_TRUE(LoadReplica(*checkpoint, with, *other).ok());
    return other->counters().validation;
  };
  EXPECT_EQ(resumed(identity).without_gain, 4);
  identity.spec.mutable_evaluate()->set_patience(3);
  EXPECT_EQ(resumed(identity).without_gain, 0);
  EXPECT_EQ(resumed(identity).best_step, 0);
  EXPECT_EQ(resumed(identity).reductions, 1) << "the rate is as it was";
  identity.spec.mutable_train()->mutable_schedule()->set_plateau_patience(2);
  EXPECT_EQ(resumed(identity).reductions, 0);
}

// Whole epochs, samples of about one length together, and rows that examples share are orders of
// their own.
TEST(ReplicaCheckpoint, ASampleOrderThatIsGivenUpOrTakenUpIsRefusedByName) {
  const auto plain = IdentityOf(v1::MOMENT_TYPE_FP32);
  RunIdentity whole = plain, grouped = plain, packed = plain;
  whole.spec.mutable_train()->set_epochs(3);
  grouped.spec.mutable_data()->set_group_by_length(true);
  packed.spec.mutable_data()->set_packing(true);
  const auto resumed = [](const RunIdentity& made, const RunIdentity& job) {
    const TestFolder folder;
    const auto checkpoint =
        Written(folder, ContentOf(*TrainedReplica(made, true), made, std::nullopt));
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
    return LoadReplica(*checkpoint, job, *MakeReplica(job, true));
  };
  for (const auto& [with, name] :
       {std::pair{whole, "whole_epochs"}, {grouped, "group_by_length"}, {packed, "packing"}}) {
    EXPECT_TRUE(resumed(with, with).ok());
    for (const absl::Status& status : {resumed(with, plain), resumed(plain, with)}) {
      EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
      EXPECT_TRUE(absl::StrContains(status.message(), name)) << status;
    }
  }
}

// Checkpoints from before there were other orders say nothing of them.
TEST(ReplicaCheckpoint, OfAnOlderVersionIsOfThePlainOrder) {
  const TestFolder folder;
  RunIdentity identity = IdentityOf(v1::MOMENT_TYPE_FP32);
  CheckpointContent content = ContentOf(*TrainedReplica(identity, true), identity, std::nullopt);
  auto state = nlohmann::json::parse(content.trainer_state_json);
  state["order"].erase("whole_epochs");
  state["order"].erase("group_by_length");
  state["order"].erase("packing");
  content.trainer_state_json = state.dump();
  const auto checkpoint = Written(folder, content);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_TRUE(LoadReplica(*checkpoint, identity, *MakeReplica(identity, true)).ok());
  identity.spec.mutable_train()->set_epochs(3);
  EXPECT_FALSE(LoadReplica(*checkpoint, identity, *MakeReplica(identity, true)).ok());
}

TEST(ReplicaCheckpoint, MomentsOfTwoKindsAreRefused) {
  const RunIdentity narrow = IdentityOf(v1::MOMENT_TYPE_INT8),
                    wide = IdentityOf(v1::MOMENT_TYPE_FP32);
  const std::unique_ptr<Replica> of_narrow = TrainedReplica(narrow, true);
  const std::unique_ptr<Replica> of_wide = TrainedReplica(wide, true);
  const CheckpointContent mine = ContentOf(*of_narrow, narrow, std::nullopt);
  const CheckpointContent theirs = ContentOf(*of_wide, wide, std::nullopt);
  // A tensor of one in the place of the other's, and one that is missing.
  for (const std::string prefix :
       {"exp_avg.", "exp_avg_sq.", "exp_avg_unit.", "exp_avg_sq_unit."}) {
    const std::string name = prefix + "model.norm.weight";
    const auto has_name = [&](const NamedTensor& tensor) { return tensor.spec.name == name; };
    CheckpointContent content = mine;
    std::erase_if(content.optimizer, has_name);
    const auto& from = theirs.optimizer;
    const auto found = std::find_if(from.begin(), from.end(), has_name);
    if (found != from.end()) content.optimizer.push_back(*found);
    for (const RunIdentity* identity : {&narrow, &wide}) {
      const TestFolder folder;
      const auto checkpoint = Written(folder, content);
      ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
      const absl::Status loaded =
          LoadReplica(*checkpoint, *identity, *MakeReplica(*identity, true));
      EXPECT_FALSE(loaded.ok()) << name;
      EXPECT_TRUE(absl::StrContains(loaded.message(), "model.norm.weight")) << loaded;
    }
  }
}

// They change no weight, and are what one corrects where a chat does not stop.
TEST(ReplicaCheckpoint, OtherEndsOfAnswersAreNoOtherModel) {
  const TestFolder folder;
  const RunIdentity identity = IdentityOf(v1::MOMENT_TYPE_FP32);
  DecoderConfig config = TinyConfig();
  config.eos_token_ids = {5};
  const auto replica = Replica::Create(config, identity.spec.train(), torch::kCPU);
  const auto checkpoint = Written(folder, ContentOf(**replica, identity, std::nullopt));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  config.eos_token_ids = {5, 7};
  config.bos_token_id = 1;
  const auto other = Replica::Create(config, identity.spec.train(), torch::kCPU);
  const absl::Status loaded = LoadReplica(*checkpoint, identity, **other);
  EXPECT_TRUE(loaded.ok()) << loaded;
}

// What CheckSameRun returns on two ranks, of whose identity `change` makes what it likes.
std::vector<absl::Status> CheckedByTwo(
    const std::function<void(int rank, RunIdentity& identity)>& change) {
  const auto world = InProcessGroup(2, absl::Seconds(30));
  std::vector<absl::Status> status(2);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      RunIdentity identity = IdentityOf(v1::MOMENT_TYPE_FP32);
      change(rank, identity);
      ProgressBoard board;
      status[rank] = CheckSameRun({*world[rank], RealClock(), board}, identity);
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return status;
}

// model.from is read from each node's own disk.
TEST(SameRun, RanksWithOtherArchitecturesFailAlikeAndSayWhose) {
  const std::vector<absl::Status> status = CheckedByTwo([](int rank, RunIdentity& identity) {
    DecoderConfig config = TinyConfig();
    config.rope_theta += rank;  // of which no shape tells
    identity.architecture = DecoderConfigToJson(config);
  });
  for (const absl::Status& each : status) {
    EXPECT_TRUE(absl::IsFailedPrecondition(each)) << each;
    EXPECT_TRUE(absl::StrContains(each.message(), "rank 1 and rank 0 have different architectures"))
        << each;
  }
}

// Each rank of mpirun reads a job file of its own, which lies elsewhere on another node.
TEST(SameRun, LetsTheVerifierLieElsewhereOnEachNode) {
  for (const bool same : {true, false}) {
    const std::vector<absl::Status> status = CheckedByTwo([&](int rank, RunIdentity& identity) {
      v1::VerifierSpec& verifier = *identity.spec.mutable_train()->mutable_verifier();
      verifier.set_folder(absl::StrCat("/of/rank", rank));
      verifier.set_words(absl::StrCat("/of/rank", rank, "/words.txt"));
      verifier.add_command(absl::StrCat("/of/rank", rank, "/judge", same ? 0 : rank));
    });
    EXPECT_EQ(status[0].ok(), same) << status[0];
  }
}

// train.lora.from too, and its scale is in no shape.
TEST(SameRun, RanksWithAdaptersOfOtherFoldersFailAlikeAndSayWhose) {
  const std::vector<absl::Status> status = CheckedByTwo([](int rank, RunIdentity& identity) {
    LoraConfig lora;
    lora.alpha += rank;
    identity.spec.mutable_train()->mutable_lora()->set_from(absl::StrCat("/of/rank", rank));
    identity.adapters = AdaptersText(TinyConfig(), lora);
  });
  for (const absl::Status& each : status) {
    EXPECT_TRUE(absl::IsFailedPrecondition(each)) << each;
    EXPECT_TRUE(absl::StrContains(each.message(), "rank 1 and rank 0 have different adapters"))
        << each;
    EXPECT_TRUE(absl::StrContains(each.message(), "train.lora.from")) << each;
  }
}

// Its number of ids is the architecture's where no model.from is given.
TEST(SameRun, OtherDataIsSaidBeforeTheArchitectureThatFollowsFromIt) {
  const std::vector<absl::Status> status = CheckedByTwo([](int rank, RunIdentity& identity) {
    identity.data_hash = absl::StrCat("of rank ", rank);
    identity.architecture = absl::StrCat("of rank ", rank);
  });
  for (const absl::Status& each : status) {
    EXPECT_TRUE(absl::StrContains(each.message(), "different data; copy the prepared")) << each;
  }
}

}  // namespace
}  // namespace espalier
