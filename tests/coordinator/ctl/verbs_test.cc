// Every verb against a scripted coordinator: what it asks, what it shows, how it exits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/coordinator/ctl/fake_operator.h"

namespace espalier::ctl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

class Verbs : public ::testing::Test {
 protected:
  Verbs() {
    std::string pattern = std::filesystem::temp_directory_path() / "espalier-ctl-XXXXXX";
    folder_ = mkdtemp(pattern.data());
    std::ofstream(folder_ + "/job.yaml")
        << "name: tiny\nmodel: {preset: nano}\ndata: {path: data}\ntrain: {steps: 7}\n";
  }
  ~Verbs() override { std::filesystem::remove_all(folder_); }
  CliResult Run(std::vector<std::string> arguments) {
    return RunCli(std::move(arguments), server_.address());
  }
  v1::JobStatus Final(v1::JobState state) {
    v1::JobStatus job = RunningJob();
    job.set_state(state);
    job.set_reason("that is how it ended");
    return job;
  }
  std::string folder_;
  FakeOperator server_;
};

TEST_F(Verbs, SubmitPrintsTheIdAloneAndResolvesPaths) {
  const CliResult result =
      Run({"submit", folder_ + "/job.yaml", "--set", "train.steps=9", "--set", "name=short"});
  EXPECT_EQ(result.code, 0) << result.remarks;
  EXPECT_EQ(result.out, "3f2a9c1e\n");
  const v1::SubmitRequest request = server_.submitted();
  EXPECT_EQ(request.spec().name(), "short");
  EXPECT_EQ(request.spec().train().steps(), 9);
  EXPECT_EQ(request.spec().data().path(), folder_ + "/data");
  EXPECT_THAT(request.yaml(), StartsWith("name: tiny\n"));
  EXPECT_EQ(request.request_id().size(), 32u);
}

TEST_F(Verbs, TwoSubmissionsAreTwoJobs) {
  Run({"submit", folder_ + "/job.yaml"});
  const std::string first = server_.submitted().request_id();
  Run({"submit", folder_ + "/job.yaml"});
  EXPECT_NE(server_.submitted().request_id(), first);
}

TEST_F(Verbs, ABadJobFileIsRefusedBeforeTheCoordinatorIsAsked) {
  std::ofstream(folder_ + "/bad.yaml") << "name: x\ndata: {path: d}\ntrain:\n  stpes: 3\n";
  for (const char* verb : {"submit", "validate"}) {
    const CliResult result = Run({verb, folder_ + "/bad.yaml"});
    EXPECT_EQ(result.code, 2);
    EXPECT_THAT(result.remarks, HasSubstr("bad.yaml:4"));
    EXPECT_THAT(result.remarks, HasSubstr("steps"));
  }
  EXPECT_EQ(server_.submitted().request_id(), "");
}

TEST_F(Verbs, DataThatTheJobCannotUseIsRefusedBeforeTheCoordinatorIsAsked) {
  std::filesystem::create_directory(folder_ + "/data");
  std::ofstream(folder_ + "/data/manifest.json")
      << R"({"format": "espalier-tokens", "version": 1, "splits": {"train": {"tokens": 100}}})";
  for (const char* verb : {"submit", "validate"}) {
    const CliResult result = Run({verb, folder_ + "/job.yaml"});
    EXPECT_EQ(result.code, 2);
    EXPECT_THAT(result.remarks, HasSubstr("data.sequence_length is 256"));
  }
  EXPECT_EQ(server_.submitted().request_id(), "");
  EXPECT_EQ(Run({"submit", folder_ + "/job.yaml", "--set", "data.sequence_length=64"}).code, 0);
}

TEST_F(Verbs, ValidateNotesThatTheDataAreNotHere) {
  const CliResult result = Run({"validate", folder_ + "/job.yaml"});
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.remarks, HasSubstr("note: data.path: " + folder_ + "/data does not exist"));
}

TEST_F(Verbs, ValidateLooksForTheModelWhichOnlyNodesMayHave) {
  const std::string from = "model={from: " + folder_ + "/model}";
  const CliResult missing = Run({"validate", folder_ + "/job.yaml", "--set", from});
  EXPECT_EQ(missing.code, 3);
  EXPECT_THAT(missing.remarks, HasSubstr("model.from: " + folder_ + "/model does not exist"));
  EXPECT_EQ(Run({"submit", folder_ + "/job.yaml", "--set", from}).code, 0);
  std::filesystem::create_directory(folder_ + "/model");
  EXPECT_EQ(Run({"validate", folder_ + "/job.yaml", "--set", from}).code, 2);
  EXPECT_EQ(Run({"submit", folder_ + "/job.yaml", "--set", from}).code, 2) << "no model anywhere";
}

TEST_F(Verbs, ValidateWorksUnderBothNamesWithoutACoordinator) {
  for (const std::vector<std::string>& verb :
       {std::vector<std::string>{"validate"}, {"job", "validate"}}) {
    std::vector<std::string> arguments = verb;
    arguments.push_back(folder_ + "/job.yaml");
    const CliResult result = RunCli(arguments, "127.0.0.1:1");
    EXPECT_EQ(result.code, 0) << result.remarks;
    EXPECT_THAT(result.out, HasSubstr("job.yaml: valid"));
  }
  const CliResult json = RunCli({"-o", "json", "validate", folder_ + "/job.yaml"});
  const auto document = nlohmann::json::parse(json.out);
  EXPECT_EQ(document["valid"], true);
  EXPECT_EQ(document["spec"]["train"]["steps"], 7);
}

struct Outcome {
  v1::JobState state;
  int code;
};

TEST_F(Verbs, WaitingAndWatchingExitAsTheJobEnded) {
  for (const Outcome& outcome : {Outcome{v1::JOB_STATE_COMPLETED, 0},
                                 {v1::JOB_STATE_FAILED, 1},
                                 {v1::JOB_STATE_CANCELLED, 8}}) {
    server_.script.watched = {RunningJob(), Final(outcome.state)};
    const CliResult waited = Run({"submit", folder_ + "/job.yaml", "--wait"});
    EXPECT_EQ(waited.code, outcome.code);
    EXPECT_THAT(waited.out, StartsWith("3f2a9c1e\n"));
    EXPECT_THAT(waited.out, HasSubstr("that is how it ended"));
    EXPECT_EQ(Run({"watch", "quick"}).code, outcome.code);
    const CliResult json = Run({"submit", folder_ + "/job.yaml", "--wait", "-o", "json"});
    EXPECT_EQ(json.code, outcome.code);
    EXPECT_EQ(nlohmann::json::parse(json.out)["status"]["id"], "3f2a9c1e");
  }
}

// A server that is gone, and one that is stopping.
TEST_F(Verbs, WatchOpensTheStreamAgainByIdWhenItBreaks) {
  // The second stream finds the job completed.
  class Later : public FakeOperator {
   public:
    using FakeOperator::FakeOperator;
    grpc::Status Watch(grpc::ServerContext* context, const v1::WatchRequest* request,
                       grpc::ServerWriter<v1::WatchResponse>* writer) override {
      const grpc::Status status = FakeOperator::Watch(context, request, writer);
      script.watched = {RunningJob()};
      script.watched[0].set_state(v1::JOB_STATE_COMPLETED);
      return status;
    }
  };
  for (const auto code : {grpc::StatusCode::UNAVAILABLE, grpc::StatusCode::CANCELLED}) {
    Later later;
    later.script.watched = {RunningJob()};
    later.script.watch_end = grpc::Status(code, "going down");
    const CliResult result = RunCli({"watch", "quick"}, later.address());
    EXPECT_EQ(result.code, 0) << result.remarks;
    EXPECT_THAT(result.remarks, HasSubstr("the coordinator went away"));
    EXPECT_THAT(later.requests(),
                ElementsAre("Watch job_id: \"quick\"", "Watch job_id: \"3f2a9c1e\""));
  }
}

TEST_F(Verbs, WatchIsOneDocumentALineInJson) {
  server_.script.watched = {Final(v1::JOB_STATE_COMPLETED)};
  const CliResult result = Run({"watch", "quick", "-o", "json"});
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 1);
  EXPECT_EQ(nlohmann::json::parse(result.out)["status"]["state"], "COMPLETED");
}

TEST_F(Verbs, QuestionsAreAskedAsTyped) {
  Run({"pause", "ab"});
  Run({"pause", "ab", "--hard"});
  Run({"resume", "ab"});
  Run({"cancel", "ab"});
  Run({"cancel", "--checkpoint", "ab"});
  Run({"checkpoint", "ab"});
  Run({"job", "ab"});
  Run({"events", "ab", "--after", "3"});
  Run({"logs", "ab", "-f", "--rank", "0", "--generation", "2"});
  Run({"logs", "ab"});
  Run({"nodes"});
  EXPECT_THAT(server_.requests(),
              ElementsAre("Pause job_id: \"ab\"", "Pause job_id: \"ab\" hard: true",
                          "Resume job_id: \"ab\"", "Cancel job_id: \"ab\"",
                          "Cancel job_id: \"ab\" checkpoint: true", "Checkpoint job_id: \"ab\"",
                          "GetJob job_id: \"ab\"", "ListEvents job_id: \"ab\" after: 3",
                          "Logs job_id: \"ab\" follow: true rank: 0 generation: 2",
                          "Logs job_id: \"ab\"", "ListNodes"));
}

TEST_F(Verbs, NodesAddPrintsTheLineAloneSoThatItCanBeSentOn) {
  const std::string line =
      "espalier-agent join 10.77.0.1:7070 --name mini --token secret --ca-sha256 abc";
  EXPECT_EQ(Run({"nodes", "add", "mini", "--address", "10.77.0.3"}).out, line + "\n");
  const CliResult json = Run({"nodes", "add", "mini", "--address", "10.77.0.3", "-o", "json"});
  EXPECT_EQ(nlohmann::json::parse(json.out)["command"], line);
  EXPECT_EQ(nlohmann::json::parse(json.out)["token"], "secret");
  Run({"nodes", "add", "mini", "--address", "10.77.0.3", "--on-battery", "leave", "--on-heat",
       "ignore", "--hours", "22:00-07:00", "--hours", "12:30-13:30"});
  Run({"nodes", "forget", "mini"});
  Run({"nodes", "forget", "mini", "--revoke"});
  EXPECT_THAT(server_.requests(),
              ElementsAre("AddNode node: \"mini\" address: \"10.77.0.3\"",
                          "AddNode node: \"mini\" address: \"10.77.0.3\"",
                          "AddNode node: \"mini\" address: \"10.77.0.3\" policy { on_battery: "
                          "\"leave\" on_heat: \"ignore\" hours: \"22:00-07:00\" hours: "
                          "\"12:30-13:30\" }",
                          "ForgetNode node: \"mini\"", "ForgetNode node: \"mini\" revoke: true"));
}

TEST_F(Verbs, NodesDrainAndAllowSayWhatBecomesOfTheJob) {
  server_.script.explanation = "job ab leaves it";
  EXPECT_EQ(Run({"nodes", "drain", "mini", "--reason", "back on Monday"}).out,
            "mini: job ab leaves it\n");
  EXPECT_EQ(Run({"nodes", "allow", "mini"}).out, "mini: job ab leaves it\n");
  EXPECT_THAT(server_.requests(), ElementsAre("DrainNode node: \"mini\" reason: \"back on Monday\"",
                                              "AllowNode node: \"mini\""));
}

TEST_F(Verbs, NodeIsNodes) {
  EXPECT_EQ(Run({"node", "drain", "mini"}).code, 0);
  EXPECT_THAT(server_.requests(), ElementsAre("DrainNode node: \"mini\""));
}

TEST_F(Verbs, NodesSetSaysOnlyWhatIsToBecomeOtherwise) {
  server_.script.explanation = "jobs heed it";
  EXPECT_EQ(Run({"nodes", "set", "mini", "--on-battery", "slow", "--largest-share", "0.3",
                 "--yield-to-user", "true", "--quiet-hours", "22:00-07:00", "--hours", "all"})
                .out,
            "mini: jobs heed it\n");
  Run({"nodes", "set", "mini", "--quiet-hours", "none", "--spared-share", "0.25"});
  EXPECT_THAT(server_.requests(),
              ElementsAre("SetNode node: \"mini\" policy { on_battery: \"slow\" largest_share: 0.3 "
                          "quiet_hours: \"22:00-07:00\" yield_to_user: true } clear_hours: true",
                          "SetNode node: \"mini\" policy { spared_share: 0.25 } "
                          "clear_quiet_hours: true"));
}

TEST_F(Verbs, PausePrintsTheExplanation) {
  server_.script.explanation = "Soft pause: 1.2 GB stay in memory; resuming takes under a second.";
  EXPECT_EQ(Run({"pause", "ab"}).out, server_.script.explanation + "\n");
  const auto json = nlohmann::json::parse(Run({"pause", "ab", "-o", "json"}).out);
  EXPECT_EQ(json["explanation"], server_.script.explanation);
}

TEST_F(Verbs, WhatWasSoAlreadyIsSaidInsteadOfWhatFollowsAndIsNoFailure) {
  server_.script.explanation = "job ab is RUNNING already; nothing was to do";
  server_.script.nothing_to_do = true;
  for (const char* verb : {"pause", "resume", "cancel"}) {
    const CliResult result = Run({verb, "ab"});
    EXPECT_EQ(result.code, 0) << verb;
    EXPECT_EQ(result.remarks, server_.script.explanation + "\n") << verb;
    EXPECT_THAT(result.out, IsEmpty()) << verb;
    const auto json = nlohmann::json::parse(Run({verb, "ab", "-o", "json"}).out);
    EXPECT_EQ(json["nothing_to_do"], true) << verb;
  }
}

TEST_F(Verbs, ListsAreUnderOneKeyInJson) {
  *server_.script.jobs.add_jobs() = RunningJob();
  EXPECT_EQ(nlohmann::json::parse(Run({"-o", "json", "jobs"}).out)["jobs"][0]["step"], 512);
  EXPECT_EQ(nlohmann::json::parse(Run({"-o", "json", "nodes"}).out)["nodes"].size(), 0u);
  EXPECT_EQ(nlohmann::json::parse(Run({"-o", "json", "events", "x"}).out)["events"].size(), 0u);
  EXPECT_EQ(Run({"jobs", "-q"}).out, "3f2a9c1e\n");
  // The status comes first, so that line tools find its fields before the spec's.
  const std::string job = Run({"-o", "json", "job", "3f"}).out;
  EXPECT_LT(job.find("\"status\""), job.find("\"spec\""));
}

TEST_F(Verbs, LogsComeOutAsTheyAre) {
  server_.script.log = {"[rank 0] a\n[rank 1] b\n", "[rank 0] c\n"};
  EXPECT_EQ(Run({"logs", "ab"}).out, "[rank 0] a\n[rank 1] b\n[rank 0] c\n");
}

struct Failure {
  grpc::StatusCode code;
  int exit;
};

TEST_F(Verbs, TheServersRefusalDecidesTheExitCode) {
  for (const Failure& failure : {Failure{grpc::StatusCode::NOT_FOUND, 3},
                                 {grpc::StatusCode::FAILED_PRECONDITION, 4},
                                 {grpc::StatusCode::PERMISSION_DENIED, 6},
                                 {grpc::StatusCode::INVALID_ARGUMENT, 2},
                                 {grpc::StatusCode::INTERNAL, 9}}) {
    server_.script.status = grpc::Status(failure.code, "the server's own words");
    for (const char* verb : {"pause", "resume", "cancel", "checkpoint", "job", "watch", "logs"}) {
      const CliResult result = Run({verb, "ab"});
      EXPECT_EQ(result.code, failure.exit) << verb;
      EXPECT_EQ(result.remarks, "espalier: the server's own words\n") << verb;
    }
  }
}

TEST_F(Verbs, ErrorsAreJsonToo) {
  server_.script.status = grpc::Status(grpc::StatusCode::NOT_FOUND, "no job 'ab'");
  const CliResult result = Run({"job", "ab", "-o", "json"});
  EXPECT_THAT(result.out, IsEmpty());
  const auto error = nlohmann::json::parse(result.remarks)["error"];
  EXPECT_EQ(error["code"], "NOT_FOUND");
  EXPECT_EQ(error["message"], "no job 'ab'");
}

TEST_F(Verbs, NobodyThereIsItsOwnExitCode) {
  const CliResult result = RunCli({"jobs"}, "127.0.0.1:1");
  EXPECT_EQ(result.code, 5);
  EXPECT_THAT(result.remarks, HasSubstr("nothing listens on 127.0.0.1:1; start espalierd"));
}

}  // namespace
}  // namespace espalier::ctl
