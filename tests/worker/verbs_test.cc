// The verbs of espalier-worker as a person uses them, with the exit codes that scripts rely on.
#include <gmock/gmock.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/file_system.h"
#include "common/config/job_file.h"
#include "espalier/v1/agent.pb.h"
#include "espalier/v1/node.pb.h"
#include "tests/worker/tiny_job.h"
#include "worker/tensor/torch_compat.h"

namespace espalier {
namespace {

using testing::HasSubstr;

Ended Worker(const TestFolder& folder, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), WorkerProgram());
  return RunToEnd(std::move(arguments), folder / "verb.log");
}

TEST(Verbs, EveryHelpShowsAnExample) {
  const TestFolder folder;
  const std::vector<std::string> verbs[] = {{"--help"},
                                            {"data", "prepare", "--help"},
                                            {"data", "inspect", "--help"},
                                            {"data", "tokenizer", "--help"},
                                            {"data", "make", "--help"},
                                            {"self-test", "--help"},
                                            {"generate", "--help"},
                                            {"chat", "--help"},
                                            {"serve", "--help"}};
  for (const std::vector<std::string>& verb : verbs) {
    const Ended help = Worker(folder, verb);
    EXPECT_EQ(help.code, 0) << help.output;
    EXPECT_THAT(help.output, HasSubstr("Example")) << verb[0];
  }
}

TEST(Verbs, ErrorsComeFromTheProgramThatWasTyped) {
  const TestFolder folder;
  const std::string inspect = absl::StrCat(WorkerProgram(), " data inspect ", folder / "nothing");
  const Ended own = RunToEnd({"/bin/bash", "-c", inspect}, folder / "own.log");
  EXPECT_THAT(own.output, testing::StartsWith("espalier-worker: ")) << own.output;
  const Ended handed =
      RunToEnd({"/bin/bash", "-c", "exec -a espalier " + inspect}, folder / "handed.log");
  EXPECT_EQ(handed.code, 2);
  EXPECT_THAT(handed.output, testing::StartsWith("espalier: ")) << handed.output;
}

TEST(Verbs, PreparedTextTrainsAndTheCheckpointGenerates) {
  const TestFolder folder;
  std::string text;
  for (int i = 0; i < 400; ++i) text += absl::StrCat("line ", i, " of a short text\n");
  const std::string file = folder.Write("text.txt", text);
  const Ended prepared = Worker(folder, {"data", "prepare", "--output", folder / "data", file});
  ASSERT_EQ(prepared.code, 0) << prepared.output;
  const Ended inspected = Worker(folder, {"data", "inspect", folder / "data"});
  ASSERT_EQ(inspected.code, 0) << inspected.output;
  EXPECT_THAT(inspected.output, HasSubstr("validation"));
  folder.Write("job.yaml",
               "name: tiny\nmodel: {hidden_size: 16, intermediate_size: 32, num_hidden_layers: 1, "
               "num_attention_heads: 2, max_position_embeddings: 64}\n"
               "data: {path: data, sequence_length: 16}\n"
               "train: {steps: 5, global_batch: 4}\nlaunch: {threads: 1, device: cpu}\n"
               "checkpoint: {directory: checkpoints, keep_best: 1}\n");
  const Ended trained = Worker(folder, {"--standalone", folder / "job.yaml"});
  ASSERT_EQ(trained.code, 0) << trained.output;
  EXPECT_THAT(trained.output, HasSubstr("validation loss: "));
  EXPECT_THAT(trained.output, HasSubstr("checkpoints/step-00000005"));
  for (const char* checkpoint : {"checkpoints/step-00000005", "checkpoints"}) {
    const Ended generated =
        Worker(folder, {"generate", "--checkpoint", folder / checkpoint, "--prompt", "line",
                        "--max-tokens", "5", "--threads", "1"});
    EXPECT_EQ(generated.code, 0) << generated.output;
    EXPECT_THAT(generated.output, HasSubstr("line")) << checkpoint;
  }
  const std::vector<std::string> generate = {"generate", "--checkpoint", folder / "checkpoints",
                                             "--prompt", "line"};
  const Ended fits = Worker(folder, generate);
  EXPECT_EQ(fits.code, 0) << "of 64 positions: " << fits.output;
  std::vector<std::string> more = generate;
  more.insert(more.end(), {"--max-new-tokens", "200"});
  EXPECT_EQ(Worker(folder, more).code, 2) << "more than there is room for was asked for";
}

TEST(Verbs, ALearntTokenizerGoesAllTheWay) {
  const TestFolder folder;
  std::string text;
  for (int i = 0; i < 400; ++i) text += absl::StrCat("line ", i, " of a short text\n");
  const std::string file = folder.Write("text.txt", text);
  const Ended learnt = Worker(
      folder, {"data", "tokenizer", "--output", folder / "bpe", "--vocab-size", "274", file});
  ASSERT_EQ(learnt.code, 0) << learnt.output;
  EXPECT_THAT(learnt.output, HasSubstr("274 ids"));
  const Ended prepared = Worker(folder, {"data", "prepare", "--output", folder / "data",
                                         "--tokenizer", folder / "bpe", file});
  ASSERT_EQ(prepared.code, 0) << prepared.output;
  EXPECT_THAT(prepared.output, HasSubstr("bpe tokenizer of 274 ids"));
  folder.Write("job.yaml",
               "name: tiny\nmodel: {hidden_size: 16, intermediate_size: 32, num_hidden_layers: 1, "
               "num_attention_heads: 2, max_position_embeddings: 64}\n"
               "data: {path: data, sequence_length: 16}\n"
               "train: {steps: 2, global_batch: 4}\nlaunch: {threads: 1, device: cpu}\n"
               "checkpoint: {directory: checkpoints}\n");
  const Ended trained = Worker(folder, {"--standalone", folder / "job.yaml"});
  ASSERT_EQ(trained.code, 0) << trained.output;
  const std::string checkpoint = folder / "checkpoints/step-00000002";
  EXPECT_EQ(ReadText(checkpoint + "/tokenizer.json"), ReadText(folder / "bpe/tokenizer.json"));
  EXPECT_EQ(ReadText(checkpoint + "/tokenizer_config.json"),
            ReadText(folder / "bpe/tokenizer_config.json"));
  const Ended generated = Worker(folder, {"generate", "--checkpoint", checkpoint, "--prompt",
                                          "line", "--max-tokens", "5", "--threads", "1"});
  EXPECT_EQ(generated.code, 0) << generated.output;
}

TEST(Verbs, MadeUpDataIsPreparedAsItIs) {
  const TestFolder folder;
  const std::string words = std::string(ESPALIER_SOURCE_DIR) + "/configs/data/wordle-words.txt";
  const std::vector<std::string> kinds[] = {
      {"wordle", "--words", words, "--considered", "1", "--form", "plain"},
      {"units", "--family", "mass", "--family", "time", "--most", "9"},
      {"arithmetic", "--terms", "3", "--operations", "+-", "--parentheses"}};
  for (const std::vector<std::string>& kind : kinds) {
    std::vector<std::string> make{"data",    "make", kind[0],        "--output", folder / kind[0],
                                  "--train", "20",   "--validation", "4",        "--seed",
                                  "3"};
    make.insert(make.end(), kind.begin() + 1, kind.end());
    const Ended made = Worker(folder, make);
    ASSERT_EQ(made.code, 0) << made.output;
    EXPECT_THAT(made.output, HasSubstr("validation-prompts.jsonl  4 rows"));
    EXPECT_EQ(Worker(folder, make).code, 2) << "the folder is there already";
    const Ended prepared =
        Worker(folder, {"data", "prepare", "--format", "prompt-completion", "--output",
                        folder / kind[0] + "-data", folder / kind[0] + "/train.jsonl",
                        "--validation-files", folder / kind[0] + "/validation.jsonl"});
    EXPECT_EQ(prepared.code, 0) << prepared.output;
    EXPECT_THAT(prepared.output, HasSubstr("validation"));
  }
  EXPECT_TRUE(std::filesystem::exists(folder / "wordle/words.txt"));
  const Ended refused =
      Worker(folder, {"data", "make", "arithmetic", "--output", folder / "x", "--terms", "1"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.output, HasSubstr("allowed: 2 to 8"));
  EXPECT_FALSE(std::filesystem::exists(folder / "x"));
}

TEST(Verbs, PrepareCountsPairsAndPromptsAsSuch) {
  const TestFolder folder;
  const std::string pairs =
      folder.Write("pairs.jsonl", R"({"prompt": "2 + 3 = ", "chosen": "5", "rejected": "six"})"
                                  "\n"
                                  R"({"prompt": "1 + 1 = ", "chosen": "2", "rejected": "two"})"
                                  "\n");
  const std::string prompts =
      folder.Write("prompts.jsonl", R"({"prompt": "2 + 3 = ", "record": {"answer": 5}})");
  const auto prepare = [&](const char* format, const std::string& file) {
    return Worker(folder, {"data", "prepare", "--output", folder / format, "--format", format,
                           "--split", "none", file});
  };
  EXPECT_THAT(prepare("preferences", pairs).output, HasSubstr("  train       2 pairs, "));
  EXPECT_THAT(prepare("prompts", prompts).output, HasSubstr("  train       1 prompts, "));
}

TEST(Verbs, GenerateReadsNoDamagedCheckpoint) {
  const TinyJob job;
  std::vector<std::string> train = job.Arguments("run");
  train.insert(train.end(), {"--set", "train.steps=7"});
  const Ended trained = Worker(job.folder(), train);
  ASSERT_EQ(trained.code, 0) << trained.output;
  const std::string folder = job.folder() / "run" + "/checkpoints";
  const std::string bad = folder + "/step-00000008";
  std::filesystem::copy(folder + "/step-00000007", bad, std::filesystem::copy_options::recursive);
  std::string weights = ReadText(bad + "/model.safetensors");
  for (size_t i = weights.size() / 2; i < weights.size(); ++i) weights[i] ^= 0x55;
  std::ofstream(bad + "/model.safetensors", std::ios::binary) << weights;
  const auto generate = [&](const std::string& from) {
    return Worker(job.folder(), {"generate", "--checkpoint", from, "--prompt", "line",
                                 "--max-tokens", "2", "--threads", "1"});
  };
  const Ended refused = generate(bad);
  EXPECT_NE(refused.code, 0);
  EXPECT_THAT(refused.output, HasSubstr("model.safetensors"));
  const Ended passed = generate(folder);
  EXPECT_EQ(passed.code, 0) << passed.output;
  EXPECT_THAT(passed.output, HasSubstr("passed over " + bad));
}

TEST(Verbs, PromptsWithCompletionsAreNotTakenForText) {
  const TestFolder folder;
  std::string lines;
  for (int i = 0; i < 100; ++i) {
    absl::StrAppend(&lines, "{\"question\": \"", i, " + 1 =\", \"completion\": \" ", i + 1,
                    "\"}\n");
  }
  const Ended prepared = Worker(
      folder, {"data", "prepare", "--output", folder / "data", "--format", "prompt-completion",
               "--prompt-field", "question", folder.Write("sums.jsonl", lines)});
  ASSERT_EQ(prepared.code, 0) << prepared.output;
  EXPECT_THAT(prepared.output, HasSubstr("examples"));
  const Ended inspected = Worker(folder, {"data", "inspect", folder / "data"});
  ASSERT_EQ(inspected.code, 0) << inspected.output;
  EXPECT_THAT(inspected.output, HasSubstr("+ 1 =\ncompletion:\n"));
  folder.Write("job.yaml",
               "name: tiny\nmodel: {preset: nano}\ndata: {path: data, sequence_length: 16}\n"
               "train: {steps: 5, global_batch: 4}\nlaunch: {threads: 1, device: cpu}\n");
  const Ended trained = Worker(folder, {"--standalone", folder / "job.yaml"});
  EXPECT_NE(trained.code, 0) << trained.output;
  EXPECT_THAT(trained.output, HasSubstr("train.task: sft uses it"));
}

// What an agent asks before a job that trains elsewhere stops for its machine.
// Of a folder of checkpoints as well as of one; what is frozen has to come from there too.
TEST(Verbs, AJobBeginsWithTheNewestWholeCheckpointOfAFolder) {
  TinyJob job(/*warm=*/true);
  job.Set("train.steps=14");
  ASSERT_EQ(Worker(job.folder(), job.Arguments("first")).code, 0);
  job.Set("train.steps=2");
  job.Set(absl::StrCat("model={from: ", job.folder() / "first", "/checkpoints}"));
  job.Set("train.lora={rank: 4}");
  const Ended whole = Worker(job.folder(), job.Arguments("second"));
  EXPECT_EQ(whole.code, 0) << whole.output;
  EXPECT_THAT(whole.output, HasSubstr("taking " + job.Checkpoint("first", "00000014")));
  EXPECT_THAT(ReadText(job.Checkpoint("second", "00000002") + "/base.json"),
              HasSubstr("checkpoints/step-00000014"));
  std::filesystem::resize_file(job.Checkpoint("first", "00000014") + "/model.safetensors", 100);
  const Ended damaged = Worker(job.folder(), job.Arguments("third"));
  EXPECT_EQ(damaged.code, 0) << damaged.output;
  EXPECT_THAT(damaged.output, HasSubstr("taking " + job.Checkpoint("first", "00000007")));
  job.Set(absl::StrCat("model={from: ", job.folder() / "data", "}"));
  const Ended none = Worker(job.folder(), job.Arguments("fourth"));
  EXPECT_EQ(none.code, 2) << none.output;
  EXPECT_THAT(none.output, HasSubstr("model.from: no model in "));
}

class Rehearsal : public testing::Test {
 protected:
  Rehearsal() {
    request_.set_job_id("tiny-1");
    const auto spec = LoadJobFile(job_.folder() / "job.yaml", {});
    EXPECT_TRUE(spec.ok()) << spec.status();
    *request_.mutable_spec() = *spec;
  }
  Ended Rehearse() const {
    const std::string file = job_.folder().Write("request", request_.SerializeAsString());
    return Worker(job_.folder(), {"rehearse", file});
  }

  const TinyJob job_;
  v1::RehearseJob request_;
};

TEST_F(Rehearsal, SaysThatThisMachineCouldTrainTheJob) {
  const Ended ended = Rehearse();
  EXPECT_EQ(ended.code, 0) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("could train tiny-1 on cpu"));
}

// espalierd and job files hand paths on as they were written.
TEST_F(Rehearsal, AndTrainingTakeATildeForTheHomeOfWhoOpensThePath) {
  const auto at_home = [&](std::vector<std::string> arguments) {
    const std::vector<std::string> env = {
        "/usr/bin/env", absl::StrCat("HOME=", job_.folder().path()), WorkerProgram()};
    arguments.insert(arguments.begin(), env.begin(), env.end());
    return RunToEnd(std::move(arguments), job_.folder() / "home.log");
  };
  request_.mutable_spec()->mutable_data()->set_path("~/data");
  const std::string file = job_.folder().Write("request", request_.SerializeAsString());
  const Ended rehearsed = at_home({"rehearse", file});
  EXPECT_EQ(rehearsed.code, 0) << rehearsed.output;
  const Ended trained =
      at_home({"--standalone", job_.folder() / "job.yaml", "--set", "data.path=~/data", "--set",
               "train.steps=1", "--set", "checkpoint.directory=~/kept"});
  EXPECT_EQ(trained.code, 0) << trained.output;
  EXPECT_TRUE(std::filesystem::exists(job_.folder() / "kept"));
}

TEST_F(Rehearsal, SaysWhatIsMissing) {
  v1::DataSpec& data = *request_.mutable_spec()->mutable_data();
  const std::string path = std::exchange(*data.mutable_path(), job_.folder() / "none");
  const Ended missing = Rehearse();
  EXPECT_EQ(missing.code, 2) << missing.output;
  EXPECT_THAT(missing.output, HasSubstr(job_.folder() / "none"));
  data.set_path(path);
  request_.set_data_sha256(std::string(64, 'a'));
  const Ended other = Rehearse();
  EXPECT_NE(other.code, 0);
  EXPECT_THAT(other.output, HasSubstr("is other than that of the nodes that train the job"));
  request_.clear_data_sha256();
  request_.set_memory_limit_bytes(1000);
  const Ended small = Rehearse();
  EXPECT_NE(small.code, 0);
  EXPECT_THAT(small.output, HasSubstr("the model does not fit"));
  request_.set_memory_limit_bytes(0);
  const char* const absent = HasMps() ? "cuda" : "mps";
  request_.set_device(absent);
  request_.mutable_spec()->mutable_launch()->clear_device();
  const Ended device = Rehearse();
  EXPECT_NE(device.code, 0);
  EXPECT_THAT(device.output, HasSubstr(absent));
}

TEST(SelfTestVerb, SaysWhetherADeviceComputesAsTheProcessorAndWritesItForAnAgent) {
  const TestFolder folder;
  const Ended reference = Worker(folder, {"self-test", "--device", "cpu"});
  EXPECT_EQ(reference.code, 0) << reference.output;
  EXPECT_THAT(reference.output, HasSubstr("in fp32 what others are compared with"));
  const Ended tried = Worker(folder, {"self-test", "--device", "cpu", "--precision", "bf16",
                                      "--result", folder / "result"});
  EXPECT_EQ(tried.code, 0) << tried.output;
  EXPECT_THAT(tried.output, HasSubstr("bf16  computes as the processor does in fp32, within"));
  v1::DeviceTrial trial;
  const std::string json = PosixFileSystem().Read(folder / "result", 1 << 16).value_or("");
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(json, &trial).ok()) << json;
  EXPECT_EQ(trial.device(), "cpu");
  ASSERT_EQ(trial.precisions_size(), 1);
  EXPECT_EQ(trial.precisions(0).precision(), "bf16");
  EXPECT_EQ(trial.precisions(0).failed(), "");
  EXPECT_GT(trial.precisions(0).difference(), 0);
}

struct Refusal {
  const char* name;
  std::vector<std::string> arguments;
  const char* message;
};

TEST(Verbs, BadInputIsRefusedWithCodeTwoAndWhatToDo) {
  const TestFolder folder;
  const Refusal refusals[] = {
      {"no way to train", {}, "--standalone FILE"},
      {"two ways to train", {"--standalone", "a.yaml", "--job-id", "7"}, "exactly one"},
      {"no coordinator", {"--job", "a.yaml"}, "--coordinator HOST:PORT or STATE_FOLDER is missing"},
      {"no such job file", {"--standalone", folder / "none.yaml"}, "none.yaml"},
      {"unknown option", {"--standalnoe", "a.yaml"}, "--standalnoe"},
      {"no request to rehearse", {"rehearse", folder / "none"}, "none"},
      {"something else to rehearse",
       {"rehearse", folder.Write("b.txt", "\x0f\x0f")},
       "holds no request"},
      {"no such precision", {"self-test", "--precision", "fp8"}, "allowed: fp32, bf16, fp16"},
      {"no such device to try", {"self-test", "--device", "tpu"}, "allowed: auto, cpu, cuda, mps"},
      {"no such checkpoint", {"generate", "--checkpoint", folder / "none"}, "none"},
      {"no temperature that there is",
       {"generate", "--checkpoint", folder / "none", "--temperature", "-1"},
       "temperature is -1"},
      {"no seed that there is",
       {"generate", "--checkpoint", folder / "none", "--seed", "-1"},
       "--seed"},
      {"fewer threads than none",
       {"generate", "--checkpoint", folder / "none", "--threads", "-2"},
       "-2 were asked for"},
      {"more threads than could be of use",
       {"generate", "--checkpoint", folder / "none", "--threads", "100000"},
       "100000 were asked for"},
      {"a folder without a model", {"generate", "--checkpoint", folder / "."}, "no config.json"},
      {"a file for a model", {"generate", "--checkpoint", folder.Write("a.txt", "a")}, "a.txt"},
      {"no such text", {"data", "prepare", "--output", folder / "d", folder / "no.txt"}, "no.txt"},
      {"unknown split",
       {"data", "prepare", "--output", folder / "d", "--split", "half", "x"},
       "allowed: auto, document"},
      {"unknown format",
       {"data", "prepare", "--output", folder / "d", "--format", "chat", "x"},
       "allowed: text, auto, text-rows, prompt-completion"},
  };
  for (const Refusal& refusal : refusals) {
    const Ended ended = Worker(folder, refusal.arguments);
    EXPECT_EQ(ended.code, 2) << refusal.name << ": " << ended.output;
    EXPECT_THAT(ended.output, HasSubstr(refusal.message)) << refusal.name;
  }
}

TEST(Verbs, AWorldOfAnotherSizeThanAskedForIsRefused) {
  const TinyJob job;
  std::vector<std::string> arguments = job.Arguments("run");
  arguments.insert(arguments.end(), {"--rank-count", "3"});
  const Ended ended = Worker(job.folder(), arguments);
  EXPECT_EQ(ended.code, 1) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("asks for 3"));
}

}  // namespace
}  // namespace espalier
