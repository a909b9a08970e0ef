// What a worker that was killed leaves in shared memory is what it had committed, to the bit, at
// whatever instant it died.
#include "worker/state/warm_state.h"

#include <ATen/Parallel.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <memory>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "tests/worker/support/test_folder.h"
#include "tests/worker/support/training_world.h"
#include "worker/state/warm_copies.h"
#include "worker/state/warm_in_place.h"

namespace espalier {
namespace {

// Groups of several blocks, one of them of lookups where the embedding is not tied.
DecoderConfig Config(bool tied) {
  DecoderConfig config = TinyConfig();
  config.vocab_size = 700;
  config.hidden_size = 64;
  config.intermediate_size = 300;
  config.tie_word_embeddings = tied;
  return config;
}

struct Kind {
  const char* name;
  v1::Precision precision;
  v1::MomentType moments;
  bool tied;
  bool values_on_host = false;  // as with MPS
  bool copies = false;          // as with CUDA
  double ema = 0;
};
constexpr Kind kKinds[] = {
    {"Fp32", v1::PRECISION_FP32, v1::MOMENT_TYPE_FP32, true},
    {"Bf16Lookups", v1::PRECISION_BF16, v1::MOMENT_TYPE_FP32, false},
    {"MomentsOf8BitsLookups", v1::PRECISION_FP32, v1::MOMENT_TYPE_INT8, false},
    {"Averaged", v1::PRECISION_FP32, v1::MOMENT_TYPE_FP32, false, false, false, 0.5},
    {"OnHost", v1::PRECISION_FP32, v1::MOMENT_TYPE_FP32, true, true},
    {"OnHostBf16Lookups", v1::PRECISION_BF16, v1::MOMENT_TYPE_FP32, false, true},
    {"Copies", v1::PRECISION_BF16, v1::MOMENT_TYPE_FP32, true, false, true},
    {"CopiesMomentsOf8BitsLookups", v1::PRECISION_FP32, v1::MOMENT_TYPE_INT8, false, false, true},
};

// A replica whose steps have made-up gradients; in shared memory where there is a folder.
class Life {
 public:
  Life(const Kind& kind, const std::string& folder) {
    identity_.spec = TinySpec(10);
    identity_.spec.mutable_train()->set_precision(kind.precision);
    identity_.spec.mutable_train()->mutable_optimizer()->set_moments(kind.moments);
    identity_.spec.mutable_train()->set_ema(kind.ema);
    Create(kind, folder);
  }
  Life(const RunIdentity& identity, const std::string& folder) : identity_(identity) {
    Create(kKinds[0], folder);
  }

  int64_t step() const { return replica_->counters().step; }
  bool found() const { return found_; }
  WarmState& warm() { return *warm_; }
  Replica& replica() { return *replica_; }
  const RunIdentity& identity() const { return identity_; }

  // From here on a copy is made of every step, and dies at the stores of its own.
  void DieAt(void (*at_store)()) {
    warm_->Finish();
    if (auto* copies = dynamic_cast<WarmCopies*>(warm_.get())) copies->set_at_store(at_store);
    if (auto* here = dynamic_cast<WarmInPlace*>(warm_.get())) here->set_at_store(at_store);
  }

  void Step() {
    TrainingCounters after = replica_->counters();
    after.updates = ++after.step;
    FillGradient();
    const AdamW::Update update{.learning_rate = 0.01, .gradient_scale = 0.5};
    if (warm_ != nullptr) warm_->Begin(after, update);
    replica_->optimizer().Apply(update);
    replica_->counters() = after;
    if (warm_ != nullptr) warm_->Commit(after);
  }

  void ExpectEquals(Life& other) {
    EXPECT_EQ(step(), other.step());
    EXPECT_EQ(replica_->optimizer().updates(), other.replica_->optimizer().updates());
    const std::vector<torch::Tensor> mine = replica_->Buffers(), theirs = other.replica_->Buffers();
    ASSERT_EQ(mine.size(), theirs.size());
    for (size_t i = 0; i < mine.size(); ++i) {
      EXPECT_TRUE(torch::equal(mine[i], theirs[i])) << "buffer " << i;
    }
    const FlatTensor& copy = replica_->parameters().flat_copy();
    if (!copy.defined()) return;
    EXPECT_TRUE(torch::equal(copy.Only(), other.replica_->parameters().flat_copy().Only()));
  }

 private:
  using Opened = absl::StatusOr<std::unique_ptr<WarmState>>;

  void Create(const Kind& kind, const std::string& folder) {
    identity_.data_hash = "made up";
    auto replica = Replica::Create(Config(kind.tied), identity_.spec.train(), torch::kCPU,
                                   {.values_on_host = kind.values_on_host});
    EXPECT_TRUE(replica.ok()) << replica.status();
    replica_ = *std::move(replica);
    if (!folder.empty()) {
      const WarmPlace place{.registry = folder, .node = "studio"};
      Opened warm = kind.copies ? Opened(WarmCopies::Open(place, identity_, *replica_, RealClock()))
                                : OpenWarmState(place, identity_, *replica_);
      EXPECT_TRUE(warm.ok() && *warm != nullptr) << warm.status();
      warm_ = *std::move(warm);
    }
    found_ = warm_ != nullptr && warm_->found();
    if (found_) {
      EXPECT_TRUE(warm_->TakeFound().ok());
      return;
    }
    replica_->parameters().Initialize(/*seed=*/5, /*initializer_range=*/0.3);
    replica_->optimizer().ResetAverage();
    if (warm_ != nullptr) warm_->Commit(replica_->counters());
  }

  void FillGradient() {
    torch::manual_seed(static_cast<uint64_t>(step()));
    Parameters& parameters = replica_->parameters();
    torch::Tensor gradient = parameters.summed_gradient().Only();
    gradient.copy_(torch::randn({gradient.numel()}));
    if (parameters.embedding() != EmbeddingGradient::kRowsApart) return;
    std::vector<int64_t> ids;
    for (int64_t id = step(); id < 700; id += 3 + step()) ids.push_back(id);
    const auto rows = static_cast<int64_t>(ids.size());
    parameters.lookup_gradient() = {std::move(ids), torch::randn({rows, 64})};
  }

  RunIdentity identity_;
  std::unique_ptr<Replica> replica_;
  std::unique_ptr<WarmState> warm_;
  bool found_ = false;
};

std::atomic<int> stores_left{0};
void DieAtStore() {
  if (stores_left.fetch_sub(1) == 0) kill(getpid(), SIGKILL);
}

// The folder of this process, or of the one that started it for a death.
class SharedFolder {
 public:
  SharedFolder() {
    if (const char* given = std::getenv(kVariable)) {
      path_ = given;
      return;
    }
    own_ = std::make_unique<TestFolder>();
    path_ = own_->path();
    setenv(kVariable, path_.c_str(), 1);
  }
  ~SharedFolder() {
    if (own_ == nullptr) return;
    Empty();
    unsetenv(kVariable);
  }
  const std::string& path() const { return path_; }
  void Empty() const {
    for (const RegisteredSegment& one : Listed()) RemoveSegment(path_, one.name);
  }
  std::vector<RegisteredSegment> Listed() const {
    auto listed = ListSegments(path_, "studio");
    EXPECT_TRUE(listed.ok()) << listed.status();
    return listed.ok() ? *std::move(listed) : std::vector<RegisteredSegment>();
  }

 private:
  static constexpr char kVariable[] = "ESPALIER_WARM_STATE_TEST";
  std::unique_ptr<TestFolder> own_;
  std::string path_;
};

constexpr int64_t kCommitted = 2;

[[noreturn]] void TrainAndDie(const Kind& kind, const std::string& folder, int store) {
  Life run(kind, folder);
  while (run.step() < kCommitted) run.Step();
  stores_left = store;
  run.DieAt(DieAtStore);
  run.Step();
  run.warm().Finish();
  _exit(0);
}

// It does not matter whether it lived that long.
bool WasKilledOrDone(int state) {
  return (WIFSIGNALED(state) && WTERMSIG(state) == SIGKILL) ||
         (WIFEXITED(state) && WEXITSTATUS(state) == 0);
}

// Kind, threads, and which death.
class WarmStateDeath : public testing::TestWithParam<std::tuple<int, int, int>> {};

TEST_P(WarmStateDeath, LosesNoCommittedStepAndFinishesTheOneInItsUpdate) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const Kind& kind = kKinds[std::get<0>(GetParam())];
  const int threads = std::get<1>(GetParam()), threads_before = at::get_num_threads();
  const SharedFolder folder;
  at::set_num_threads(threads);
  SplitMix64 random(static_cast<uint64_t>(threads), static_cast<uint64_t>(std::get<2>(GetParam())));
  const int store = static_cast<int>(random.Below(kind.copies ? 9 : 90));
  EXPECT_EXIT(TrainAndDie(kind, folder.path(), store), WasKilledOrDone, "");
  Life undisturbed(kind, ""), resumed(kind, folder.path());
  EXPECT_TRUE(resumed.found());
  EXPECT_GE(resumed.step(), kCommitted) << "died at store " << store;
  while (undisturbed.step() < 4) undisturbed.Step();
  while (resumed.step() < 4) resumed.Step();
  resumed.ExpectEquals(undisturbed);
  at::set_num_threads(threads_before);
}

INSTANTIATE_TEST_SUITE_P(Kinds, WarmStateDeath,
                         testing::Combine(testing::Range(0, 7), testing::Values(1, 2, 4),
                                          testing::Range(0, 4)));

TEST(WarmState, IsFoundByTheNextOwnerAsItWasLeft) {
  for (const Kind& kind : kKinds) {
    const SharedFolder folder;
    Life undisturbed(kind, "");
    for (int step = 0; step < 3; ++step) undisturbed.Step();
    {
      Life first(kind, folder.path());
      EXPECT_FALSE(first.found());
      for (int step = 0; step < 3; ++step) first.Step();
      first.warm().Finish();
    }
    Life second(kind, folder.path());
    EXPECT_TRUE(second.found()) << kind.name;
    second.ExpectEquals(undisturbed);
  }
}

TEST(WarmState, OfAnotherRunIsNotTaken) {
  const SharedFolder folder;
  RunIdentity identity = Life(kKinds[0], "").identity();
  const auto leave_one = [&] {
    Life run(identity, folder.path());
    run.Step();
  };
  leave_one();
  EXPECT_TRUE(Life(identity, folder.path()).found());
  RunIdentity other = identity;
  other.spec.mutable_data()->set_sequence_length(64);
  EXPECT_FALSE(Life(other, folder.path()).found());
  leave_one();
  other = identity;
  other.spec.mutable_train()->mutable_optimizer()->set_beta2(0.5);
  EXPECT_FALSE(Life(other, folder.path()).found());
  leave_one();
  other = identity;
  other.spec.mutable_train()->set_epochs(3);
  EXPECT_FALSE(Life(other, folder.path()).found()) << "another order of samples";
  leave_one();
  other = identity;
  other.spec.mutable_data()->set_group_by_length(true);
  EXPECT_FALSE(Life(other, folder.path()).found()) << "another order of samples";
  leave_one();
  other = identity;
  other.spec.mutable_data()->set_packing(true);
  EXPECT_FALSE(Life(other, folder.path()).found()) << "other samples";
}

TEST(WarmState, CountsNoMoreOnceItWasCleared) {
  for (const Kind& kind : kKinds) {
    const SharedFolder folder;
    {
      Life run(kind, folder.path());
      run.Step();
      run.warm().Clear();
      run.warm().Finish();
    }
    Life next(kind, folder.path());
    EXPECT_FALSE(next.found()) << kind.name;
    Life undisturbed(kind, "");
    next.ExpectEquals(undisturbed);
  }
}

TEST(WarmState, WithDamagedRecordsIsNotTaken) {
  const SharedFolder folder;
  {
    Life run(kKinds[0], folder.path());
    run.Step();
  }
  const int memory = shm_open(("/" + folder.Listed().front().name).c_str(), O_RDWR, 0);
  ASSERT_GE(memory, 0);
  constexpr size_t kPreamble = 16384, kRecords = 1200;
  void* const at =
      mmap(nullptr, kPreamble + kRecords, PROT_WRITE | PROT_READ, MAP_SHARED, memory, 0);
  ASSERT_NE(at, MAP_FAILED);
  auto* bytes = static_cast<unsigned char*>(at) + kPreamble;
  for (size_t i = sizeof(uint64_t); i < kRecords; ++i) bytes[i] ^= 1U;
  munmap(at, kPreamble + kRecords);
  close(memory);
  EXPECT_FALSE(Life(kKinds[0], folder.path()).found());
}

TEST(WarmState, LeavesNothingWhenItIsRemoved) {
  const SharedFolder folder;
  {
    Life run(kKinds[0], folder.path());
    run.Step();
    run.warm().Remove();
    run.Step();
  }
  EXPECT_TRUE(folder.Listed().empty());
  EXPECT_FALSE(Life(kKinds[0], folder.path()).found());
}

}  // namespace
}  // namespace espalier
