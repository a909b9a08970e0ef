#include "tests/coordinator/service/espalierd_process.h"

#include <filesystem>

#include "common/config/job_file.h"

namespace espalier {
namespace {

// build/bin, where espalierd is; the stub worker lies in build/tests.
std::string BinFolder() {
  const char* bin = std::getenv("ESPALIER_BIN");
  EXPECT_NE(bin, nullptr) << "set ESPALIER_BIN to the folder with espalierd, as ctest does";
  return bin == nullptr ? "." : bin;
}

bool IsFinalState(v1::JobState state) { return state >= v1::JOB_STATE_COMPLETED; }

}  // namespace

EspalierdProcess::EspalierdProcess() {
  folder_.Write("cluster.yaml", absl::StrCat("metrics_listen: 127.0.0.1:0\n"
                                             "launcher: {worker: ",
                                             BinFolder(), "/../tests/stub_worker}\n",
                                             "nodes:\n"
                                             "  - {name: left, address: 127.0.0.1}\n"
                                             "  - {name: right, address: 127.0.0.1}\n"));
}

EspalierdProcess::~EspalierdProcess() {
  if (running()) Kill();
  absl::StatusOr<std::unique_ptr<SqliteJournal>> journal =
      SqliteJournal::Open(state("journal.sqlite"));
  if (!journal.ok()) return;
  const absl::StatusOr<JournalContents> contents = (*journal)->Load();
  if (!contents.ok()) return;
  for (const LaunchRow& row : contents->launches) {
    SignalSession(row.process, SIGKILL);
    WaitUntil([&] { return SignalSession(row.process, SIGKILL) == 0; });
  }
}

void EspalierdProcess::Allow(const std::string& folder) const {
  folder_.Write("cluster.yaml", absl::StrCat(folder_.Read("cluster.yaml"), "writable_folders: [",
                                             folder_.path(folder), "]\n"));
}

ProcessIdentity EspalierdProcess::LaunchedProcess() const {
  absl::StatusOr<std::unique_ptr<SqliteJournal>> journal =
      SqliteJournal::Open(state("journal.sqlite"));
  EXPECT_TRUE(journal.ok()) << journal.status();
  const absl::StatusOr<JournalContents> contents = (*journal)->Load();
  EXPECT_TRUE(contents.ok() && !contents->launches.empty());
  return contents->launches.back().process;
}

void EspalierdProcess::Spawn() {
  absl::StatusOr<GatedProcess> process = GatedProcess::Spawn(
      {.argv = {BinFolder() + "/espalierd", "--cluster", folder_.path("cluster.yaml"),
                "--state-dir", folder_.path("state")},
       .log_path = folder_.path("espalierd.log")});
  ASSERT_TRUE(process.ok()) << process.status();
  listening_before_ = CountListening();
  process->Release();
  identity_ = process->identity();
}

void EspalierdProcess::Start() {
  Spawn();
  ASSERT_TRUE(WaitUntil([&] { return CountListening() > listening_before_ || !running(); }))
      << log();
  ASSERT_TRUE(running()) << log();
  stub_ = v1::OperatorService::NewStub(
      grpc::CreateChannel("unix:" + Address("socket="), grpc::InsecureChannelCredentials()));
}

int EspalierdProcess::CountListening() const {
  int count = 0;
  const std::string text = log();
  for (size_t at = 0; (at = text.find("espalierd: listening on ", at)) != std::string::npos; ++at) {
    ++count;
  }
  return count;
}

std::string EspalierdProcess::Address(const std::string& key) const {
  const std::string text = folder_.Read("state/address");
  const size_t start = text.find(key);
  if (start == std::string::npos) return "";
  const size_t from = start + key.size();
  return text.substr(from, text.find('\n', from) - from);
}

void EspalierdProcess::End(int signal) {
  kill(static_cast<pid_t>(identity_->pid), signal);
  EXPECT_TRUE(WaitUntil([&] { return !running(); }));
}

int EspalierdProcess::Terminate() {
  kill(static_cast<pid_t>(identity_->pid), SIGTERM);
  int code = -1;
  EXPECT_TRUE(WaitUntil([&] {
    absl::StatusOr<std::optional<ExitStatus>> exit = PollChild(identity_->pid);
    if (!exit.ok() || !exit->has_value()) return false;
    code = (*exit)->signal == 0 ? (*exit)->code : -(*exit)->signal;
    return true;
  }));
  return code;
}

v1::SubmitRequest EspalierdProcess::MakeSubmission(const Job& job) const {
  v1::SubmitRequest request;
  request.set_request_id(job.request_id);
  v1::JobSpec& spec = *request.mutable_spec();
  spec.set_name("stub");
  spec.mutable_model()->set_preset("nano");
  spec.mutable_data()->set_path(folder_.path(job.data));
  std::filesystem::create_directory(folder_.path(job.data));
  folder_.Write(job.data + "/manifest.json", "{}");
  spec.mutable_train()->set_steps(job.steps);
  spec.mutable_parallel()->set_min_nodes(2);
  spec.mutable_checkpoint()->set_every_steps(50);
  spec.mutable_health()->set_max_restarts(job.max_restarts);
  spec.mutable_health()->set_restart_backoff_seconds(0);
  FillJobDefaults(spec);
  return request;
}

std::string EspalierdProcess::Submit(const Job& job) {
  BoundedContext context;
  v1::SubmitResponse response;
  const grpc::Status status = stub_->Submit(&context, MakeSubmission(job), &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response.job_id();
}

std::optional<v1::JobStatus> EspalierdProcess::Status(const std::string& job) {
  BoundedContext context;
  v1::GetJobRequest request;
  v1::GetJobResponse response;
  request.set_job_id(job);
  if (!stub_->GetJob(&context, request, &response).ok()) return std::nullopt;
  return response.status();
}

v1::JobStatus EspalierdProcess::Await(const std::string& job, v1::JobState state) {
  v1::JobStatus last;
  const bool reached = WaitUntil([&] {
    if (std::optional<v1::JobStatus> status = Status(job)) last = *status;
    return last.state() == state || IsFinalState(last.state());
  });
  EXPECT_TRUE(reached && last.state() == state)
      << "wanted " << v1::JobState_Name(state) << ", is " << last.ShortDebugString() << "\n"
      << log() << folder_.Read("state/jobs/" + job + "/logs/gen-0001.log");
  return last;
}

v1::JobStatus EspalierdProcess::AwaitStep(const std::string& job, int64_t step) {
  v1::JobStatus last;
  const bool reached = WaitUntil([&] {
    if (std::optional<v1::JobStatus> status = Status(job)) last = *status;
    return last.step() >= step;
  });
  EXPECT_TRUE(reached) << last.ShortDebugString() << "\n" << log();
  return last;
}

}  // namespace espalier
