// A worker that trains nothing: it attaches with the real client, commits a step every few
// milliseconds, obeys directives, and keeps a "checkpoint" (a file with the step) in the job's
// checkpoint folder. Every rank goes by itself. Started by mpirun in the tests of espalierd.
//
// data.path of the job chooses what goes wrong: "crash-at:N" ends rank 1 of generation 1 at step N,
// or later, where rank 0 has written no checkpoint yet; with "slow" rank 1 says that a sequence
// takes it twice as long as rank 0.
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <optional>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "worker/control/attach_client.h"

namespace espalier {
namespace {

constexpr absl::Duration kStepTime = absl::Milliseconds(5);
// What it says that a sequence takes.
constexpr double kPace = 0.01;
constexpr absl::Duration kPatience = absl::Seconds(60);

int64_t Number(const std::string& text) {
  int64_t number = 0;
  return absl::SimpleAtoi(text, &number) ? number : 0;
}

class StubWorker {
 public:
  StubWorker(std::map<std::string, std::string> flags, int rank)
      : flags_(std::move(flags)), rank_(rank) {}

  int Run() {
    std::optional<TlsFiles> tls;
    if (flags_.count("--tls-ca") > 0) {
      tls = {flags_["--tls-ca"], flags_["--tls-cert"], flags_["--tls-key"]};
    }
    absl::StatusOr<ChannelTarget> target = MakeTarget(flags_["--coordinator"], tls, "");
    if (!target.ok()) return Fail(target.status());
    absl::StatusOr<std::unique_ptr<ControlClient>> client =
        MakeAttachClient({.target = *target, .on_fenced = [](const auto&) {}}, RealClock());
    if (!client.ok()) return Fail(client.status());
    client_ = *std::move(client);
    absl::StatusOr<v1::Welcome> welcome = client_->Attach(Hello(), kPatience);
    if (!welcome.ok()) return Fail(welcome.status());
    welcome_ = *std::move(welcome);
    step_ = ReadCheckpoint();
    Say(absl::StrCat("starts from step ", step_));
    v1::AttachRequest ready;
    ready.mutable_ready()->set_next_step(step_);
    ready.mutable_ready()->set_device("cpu");
    client_->Report(ready);
    return Train();
  }

 private:
  v1::Hello Hello() {
    v1::Hello hello;
    hello.set_job_id(flags_["--job-id"]);
    hello.set_generation(Number(flags_["--generation"]));
    hello.set_rank(rank_);
    hello.set_world_size(static_cast<int32_t>(Number(flags_["--rank-count"])));
    hello.set_node(flags_["--node"]);
    hello.set_pid(getpid());
    return hello;
  }

  int Train() {
    while (step_ < welcome_.spec().train().steps()) {
      if (!client_->status().ok()) return Fail(client_->status());
      const v1::Directive directive = client_->directive();
      Obey(directive);
      if (directive.run_state() == v1::RUN_STATE_STOP) {
        if (directive.checkpoint_before_stop()) WriteCheckpoint();
        return Finish(v1::OUTCOME_STOPPED);
      }
      if (directive.run_state() == v1::RUN_STATE_PAUSE) {
        client_->progress().Enter(v1::PHASE_PAUSED);
        client_->progress().Worked();
        client_->WaitForDirectiveAfter(directive.number(), absl::Milliseconds(100));
        continue;
      }
      CommitStep();
    }
    WriteCheckpoint();
    return Finish(v1::OUTCOME_COMPLETED);
  }

  void Obey(const v1::Directive& directive) {
    if (directive.checkpoint_request() > checkpoint_request_) WriteCheckpoint();
    checkpoint_request_ = directive.checkpoint_request();
    if (directive.number() <= acked_) return;
    acked_ = directive.number();
    v1::AttachRequest message;
    message.mutable_ack()->set_number(directive.number());
    message.mutable_ack()->set_run_state(directive.run_state());
    message.mutable_ack()->set_next_step(step_);
    client_->Report(message);
  }

  void CommitStep() {
    RealClock().Sleep(kStepTime);
    absl::string_view crash = welcome_.spec().data().path();
    crash = crash.substr(crash.rfind('/') + 1);
    const double pace = crash == "slow" && rank_ == 1 ? 2 * kPace : kPace;
    if (absl::ConsumePrefix(&crash, "crash-at:") && rank_ == 1 && welcome_.generation() == 1 &&
        step_ >= Number(std::string(crash)) && std::filesystem::exists(CheckpointPath())) {
      Say("crashes as the job says");
      std::abort();
    }
    v1::AttachRequest message;
    v1::StepReport& report = *message.mutable_step();
    report.set_step(step_);
    report.set_loss(1 + 3 * std::exp(-0.01 * static_cast<double>(step_)));
    report.set_tokens(1000);
    report.set_shard(client_->directive().plan().sequences(rank_));
    report.set_compute_seconds(pace * report.shard());
    report.set_step_seconds(absl::ToDoubleSeconds(kStepTime));
    report.set_exchange_bytes(100);
    client_->Report(message);
    ++step_;
    client_->progress().step = step_;
    client_->progress().Enter(v1::PHASE_COMPUTE);
    const int64_t every = welcome_.spec().checkpoint().every_steps();
    if (every > 0 && step_ % every == 0) WriteCheckpoint();
  }

  std::string CheckpointPath() const { return welcome_.checkpoint_directory() + "/step"; }
  int64_t ReadCheckpoint() const {
    std::string text;
    std::ifstream(CheckpointPath()) >> text;
    return Number(text);
  }
  void WriteCheckpoint() {
    if (rank_ != 0) return;
    std::filesystem::create_directories(welcome_.checkpoint_directory());
    std::ofstream(CheckpointPath() + ".new") << step_;
    std::filesystem::rename(CheckpointPath() + ".new", CheckpointPath());
    v1::AttachRequest message;
    message.mutable_checkpoint()->set_step(step_);
    message.mutable_checkpoint()->set_path(CheckpointPath());
    message.mutable_checkpoint()->set_bytes(8);
    client_->Report(message);
  }

  int Finish(v1::Outcome outcome) {
    v1::Finished finished;
    finished.set_outcome(outcome);
    finished.set_next_step(step_);
    Say(absl::StrCat("finished at step ", step_));
    return client_->Finish(finished, kPatience).ok() ? 0 : 1;
  }
  void Say(const std::string& text) {
    std::cout << absl::StrCat("[rank ", rank_, "] ", text, "\n") << std::flush;
  }
  int Fail(const absl::Status& status) {
    Say(status.ToString());
    return 1;
  }

  std::map<std::string, std::string> flags_;
  const int rank_;
  std::unique_ptr<ControlClient> client_;
  v1::Welcome welcome_;
  int64_t step_ = 0;
  int64_t acked_ = 0;
  int64_t checkpoint_request_ = 0;
};

}  // namespace
}  // namespace espalier

int main(int argc, char** argv) {
  const char* variable = std::getenv("OMPI_COMM_WORLD_RANK");
  const int rank = variable == nullptr ? 0 : std::atoi(variable);
  // What is given more than once is given once for each rank.
  std::map<std::string, std::string> flags;
  std::map<std::string, int> times;
  for (int i = 1; i + 1 < argc; i += 2) {
    const int time = times[argv[i]]++;
    if (time == 0 || time == rank) flags[argv[i]] = argv[i + 1];
  }
  return espalier::StubWorker(std::move(flags), rank).Run();
}
