// What a run of rft goes on from: as it was written, or not at all.
#include "worker/task/rft_progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/sha256.h"
#include "common/config/job_file.h"
#include "tests/worker/support/test_folder.h"
#include "worker/collective/in_process.h"
#include "worker/task/run_name.h"
#include "worker/task/test_progress.h"

namespace espalier {
namespace {

// Paths begin with the home folder of a node's user.
TEST(RunName, IsTheSameOnAllNodes) {
  const auto job = [](const std::string& home, const std::string& model) {
    v1::JobSpec spec;
    spec.mutable_model()->set_from(home + model);
    spec.mutable_train()->mutable_lora()->set_from(home + "/adapter");
    v1::VerifierSpec& verifier = *spec.mutable_train()->mutable_verifier();
    verifier.set_folder(home);  // that of the job file
    verifier.add_command(home + "/judge");
    return spec;
  };
  EXPECT_EQ(RunName(job("/home/a", "/model"), "data"), RunName(job("/Users/b", "/model"), "data"));
  EXPECT_NE(RunName(job("/home/a", "/model"), "data"), RunName(job("/home/a", "/other"), "data"));
}

// A version that knows more settings fills them in, in jobs that are under way.
TEST(RunName, IsTheSameWithASettingThatIsNewerThanTheRun) {
  v1::JobSpec spec;
  v1::TrainSpec& train = *spec.mutable_train();
  train.set_task(v1::TASK_RFT);
  spec.mutable_model()->set_hidden_size(64);
  FillJobDefaults(spec);
  v1::JobSpec before = spec;
  before.mutable_train()->mutable_rollout()->clear_min_p();
  before.mutable_train()->mutable_verifier()->clear_failed_reward();
  before.mutable_data()->clear_packing();
  before.mutable_evaluate()->Clear();
  before.mutable_parallel()->clear_gradient_dtype();
  const std::string name = RunName(spec, "data");
  EXPECT_EQ(TestName(before, "data", "7"), TestName(spec, "data", "7"));
  EXPECT_EQ(RunName(before, "data"), name);
  train.mutable_rollout()->set_min_p(0.5);
  EXPECT_NE(RunName(spec, "data"), name);
}

// What a run that failed advises is no other run.
TEST(RunName, IsTheSameForWhateverTimeAVerifierHas) {
  v1::JobSpec spec;
  const std::string name = RunName(spec, "data");
  spec.mutable_train()->mutable_verifier()->set_time_limit_seconds(60);
  spec.mutable_train()->mutable_verifier()->set_start_limit_seconds(600);
  EXPECT_EQ(RunName(spec, "data"), name);
}

TEST(TestName, IsThatOfWhateverDecidesWhatAModelComesTo) {
  v1::JobSpec spec;
  const std::string name = TestName(spec, "data", "7");
  const auto other = [&](const auto& change) {
    v1::JobSpec changed = spec;
    change(changed);
    return TestName(changed, "data", "7") != name;
  };
  EXPECT_FALSE(other([](auto& job) { job.mutable_data()->set_path("elsewhere"); }));
  EXPECT_TRUE(other([](auto& job) { job.mutable_data()->set_seed(2); }));
  EXPECT_TRUE(other([](auto& job) { job.mutable_data()->set_group_by_length(true); }));
  EXPECT_TRUE(other([](auto& job) { job.mutable_data()->set_sequence_length(64); }));
  EXPECT_TRUE(other([](auto& job) { job.mutable_evaluate()->set_every_steps(7); }));
  EXPECT_TRUE(other([](auto& job) { job.mutable_train()->set_global_batch(3); }));
  EXPECT_TRUE(other(
      [](auto& job) { job.mutable_parallel()->set_gradient_dtype(v1::GRADIENT_DTYPE_BF16); }));
}

TEST(RunName, TakesNoSlashAtTheEndForAName) {
  const auto job = [](const std::string& model) {
    v1::JobSpec spec;
    spec.mutable_model()->set_from(model);
    return spec;
  };
  EXPECT_NE(RunName(job("models/a/"), "data"), RunName(job("models/b/"), "data"));
  EXPECT_EQ(RunName(job("models/a//"), "data"), RunName(job("/home/models/a"), "data"));
}

// A tensor of two bytes and one of 200,000, of which one is in the midst.
void WriteWeights(const TestFolder& folder, const std::string& name, char small, char midst,
                  const std::string& config = "{}") {
  const std::string header = R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                             R"("b":{"dtype":"U8","shape":[200000],"data_offsets":[2,200002]}})";
  std::string text(8, '\0');
  text[0] = static_cast<char>(header.size());
  text += header + std::string(2, small) + std::string(200000, midst);
  folder.Write(name + "/model.safetensors", text);
  folder.Write(name + "/config.json", config);
}

TEST(RunName, TellsModelsOfOneNameApartByWhatTheyAre) {
  const TestFolder folder;
  const auto name_of = [&](const std::string& run) {
    v1::JobSpec spec;
    spec.mutable_model()->set_from(folder / (run + "/step-00000400/"));
    const auto model = ModelContent(spec);
    EXPECT_TRUE(model.ok()) << model.status();
    return RunName(spec, "data", *model);
  };
  WriteWeights(folder, "a/step-00000400", 'x', 'x');
  WriteWeights(folder, "copy/step-00000400", 'x', 'x', R"({"_name_or_path":"where it was saved"})");
  WriteWeights(folder, "small/step-00000400", 'y', 'x');
  WriteWeights(folder, "large/step-00000400", 'x', 'y');
  WriteWeights(folder, "config/step-00000400", 'x', 'x', R"({"rope_theta":1})");
  EXPECT_EQ(name_of("a"), name_of("copy")) << "another node has it elsewhere";
  for (const char* other : {"small", "large", "config"}) EXPECT_NE(name_of("a"), name_of(other));
  v1::JobSpec without;
  EXPECT_EQ(ModelContent(without).value(), "");
  without.mutable_model()->set_from(folder / "nowhere");
  EXPECT_FALSE(ModelContent(without).ok());
}

TEST(TestProgress, ComesBackAsItWasOrNotAtAll) {
  const TestProgress kept{.of = "r", .step = 4, .reach = 7, .so_far = R"({"right":"a \"word\""})"};
  const std::string json = TestProgressToJson(kept);
  const auto back = TestProgressFromJson(json);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, kept);
  for (size_t at = 0; at + 1 < json.size(); ++at) {
    EXPECT_FALSE(TestProgressFromJson(json.substr(0, at)).ok()) << at;
    std::string altered = json;
    altered[at] = altered[at] == '7' ? '8' : '7';
    EXPECT_FALSE(TestProgressFromJson(altered).ok()) << at;
  }
}

TEST(RftProgress, ComesBackAsItWasOrNotAtAll) {
  RftProgress progress{.run = "r",
                       .before = {.answers = 3, .right = 1, .answered = 2},
                       .prompts = 7,
                       .pending = {{.prompt = 4, .made = 2}, {.prompt = 6, .made = 1}},
                       .rows = {}};
  progress.rows = {{.prompt = 2, .sample = 1, .ids = {1, 256}, .text = "a\n\"b"}};
  progress.sample_seconds = 0.1;
  const std::string json = RftProgressToJson(progress);
  const auto back = RftProgressFromJson(json);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, progress);
  for (size_t at = 0; at < json.size(); at += 7) {
    EXPECT_FALSE(RftProgressFromJson(json.substr(0, at)).ok()) << at;
    std::string altered = json;
    altered[at] = altered[at] == '7' ? '8' : '7';
    EXPECT_FALSE(RftProgressFromJson(altered).ok()) << at;
  }
}

TEST(RftProgress, OfAnEarlierVersionIsTakenAsItIs) {
  const std::string body =
      R"({"version":1,"run":"r","prompts":2,"samples":3,"new_tokens":9,"sample_seconds":0.5,)"
      R"("verify_seconds":0.25,"before":{"answers":3,"accuracy":0.3333333333333333,)"
      R"("answer_rate":1.0},"rows":[[1,0,[7],"x"]]})";
  const auto read = RftProgressFromJson(
      absl::StrCat("{\"sha256\":\"", Sha256Hex(body), "\",\"progress\":", body, "}"));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->before, (RftTest{.answers = 3, .right = 1, .answered = 3}));
  EXPECT_EQ(read->done(), 2);
}

// A job that is submitted again with other settings would write over hours of sampling.
TEST(RftProgress, OfAnotherRunIsSetAside) {
  const TestFolder folder;
  RftProgress others;
  others.run = "another";
  others.samples = 5000;
  const std::string text = RftProgressToJson(others);
  const auto world = InProcessGroup(1, absl::Seconds(30));
  ProgressBoard board;
  for (const char* aside : {".other-1", ".other-2"}) {
    const std::string path = folder.Write(kRftProgressName, text);
    const auto loaded = LoadRftProgress({*world[0], RealClock(), board}, PosixFileSystem(),
                                        folder.path(), "mine", /*learns_from=*/0);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_EQ(loaded->run, "mine");
    EXPECT_EQ(loaded->samples, 0);
    EXPECT_FALSE(std::filesystem::exists(path));
    EXPECT_EQ(ReadText(path + aside), text);
  }
}

// Behind the first step, of ranks whose folders hold these, of which those of the run `mine` have
// the rows that it has learnt from. What is there afterwards.
std::vector<std::set<std::string>> NamesAfterLoading(const std::vector<std::string>& runs) {
  const TestFolder folder;
  const std::vector<RftRow> learnt{{.prompt = 1, .sample = 0, .ids = {7}, .text = "x"}};
  const auto world = InProcessGroup(static_cast<int>(runs.size()), absl::Seconds(30));
  std::vector<std::set<std::string>> names(runs.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < runs.size(); ++rank) {
    threads.emplace_back([&, rank] {
      RftProgress held;
      held.run = runs[rank];
      if (held.run == "mine") held.rows = learnt;
      const std::string own = absl::StrCat(rank);
      folder.Write(absl::StrCat(own, "/", kRftProgressName), RftProgressToJson(held));
      ProgressBoard board;
      const auto loaded = LoadRftProgress({*world[rank], RealClock(), board}, PosixFileSystem(),
                                          folder / own, "mine", HashOf(learnt));
      EXPECT_TRUE(loaded.ok()) << loaded.status();
      names[rank] = Names(folder / own);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return names;
}

TEST(RftProgress, OfAnotherRunIsSetAsideOnlyWhereThisOneIsWritten) {
  const std::set<std::string> left{kRftProgressName};
  const std::set<std::string> aside{absl::StrCat(kRftProgressName, ".other-1")};
  EXPECT_THAT(NamesAfterLoading({"another"}), testing::ElementsAre(left));
  EXPECT_THAT(NamesAfterLoading({"mine", "another"}), testing::ElementsAre(left, aside));
}

absl::Status LoadAlone(const std::string& folder) {
  const auto world = InProcessGroup(1, absl::Seconds(30));
  ProgressBoard board;
  return LoadRftProgress({*world[0], RealClock(), board}, PosixFileSystem(), folder, "mine",
                         /*learns_from=*/0)
      .status();
}

TEST(RftProgress, OfALaterVersionIsSetAsideAndNotWrittenOver) {
  const TestFolder folder;
  const std::string body =
      R"({"version":3,"run":"mine","prompts":2,"samples":3,"new_tokens":9,"sample_seconds":0.5,)"
      R"("verify_seconds":0.25,"pending":[],"rows":[]})";
  const std::string text =
      absl::StrCat(R"({"sha256":")", Sha256Hex(body), R"(","progress":)", body, "}\n");
  EXPECT_EQ(RftProgressFromJson(text).status().code(), absl::StatusCode::kUnimplemented);
  folder.Write(kRftProgressName, text);
  EXPECT_EQ(LoadAlone(folder.path()), absl::OkStatus());
  EXPECT_THAT(Names(folder.path()),
              testing::ElementsAre(absl::StrCat(kRftProgressName, ".other-1")));
}

TEST(RftProgress, OfAnotherRunThatCannotBeSetAsideStopsThisOne) {
  const TestFolder folder;
  const std::string text = RftProgressToJson({.run = "another", .before = {}, .rows = {}});
  folder.Write(kRftProgressName, text);
  for (int i = 1; i <= 100; ++i) folder.Write(absl::StrCat(kRftProgressName, ".other-", i), "");
  const absl::Status refused = LoadAlone(folder.path());
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), testing::HasSubstr("move it away"));
  EXPECT_EQ(PosixFileSystem().Read(folder / kRftProgressName, 1 << 20).value(), text);
}

}  // namespace
}  // namespace espalier
