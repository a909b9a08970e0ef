#include "tests/coordinator/ctl/fake_operator.h"

#include <grpcpp/server_builder.h>

#include "absl/strings/str_cat.h"
#include "common/rpc/server_credentials.h"
#include "coordinator/ctl/app.h"

namespace espalier::ctl {

FakeOperator::FakeOperator(const std::string& listen, std::optional<TlsFiles> tls) {
  grpc::ServerBuilder builder;
  int port = 0;
  SetServerKeepalive(builder);
  std::shared_ptr<grpc::ServerCredentials> credentials = grpc::InsecureServerCredentials();
  if (tls.has_value()) {
    const ServerTls options = {
        .listen = listen,
        .identity = ServerIdentity::Load(*tls, tls->key + ".copy", RealClock()).value()};
    credentials = MakeServerCredentials(options, RealClock()).value();
  }
  builder.AddListeningPort(listen, credentials, &port);
  builder.RegisterService(this);
  server_ = builder.BuildAndStart();
  address_ = absl::StrCat("127.0.0.1:", port);
}

FakeOperator::~FakeOperator() {
  if (server_ != nullptr) server_->Shutdown();
}

std::vector<std::string> FakeOperator::requests() {
  const std::lock_guard lock(mutex_);
  return requests_;
}

v1::SubmitRequest FakeOperator::submitted() {
  const std::lock_guard lock(mutex_);
  return submitted_;
}

grpc::Status FakeOperator::Record(const std::string& verb,
                                  const google::protobuf::Message& request) {
  const std::lock_guard lock(mutex_);
  std::string text = request.ShortDebugString();
  while (!text.empty() && text.back() == ' ') text.pop_back();
  requests_.push_back(text.empty() ? verb : absl::StrCat(verb, " ", text));
  return script.status;
}

grpc::Status FakeOperator::Submit(grpc::ServerContext*, const v1::SubmitRequest* request,
                                  v1::SubmitResponse* response) {
  const std::lock_guard lock(mutex_);
  submitted_ = *request;
  response->set_job_id("3f2a9c1e");
  return script.status;
}

grpc::Status FakeOperator::ListJobs(grpc::ServerContext*, const v1::ListJobsRequest* request,
                                    v1::ListJobsResponse* response) {
  *response = script.jobs;
  return Record("ListJobs", *request);
}

grpc::Status FakeOperator::GetJob(grpc::ServerContext*, const v1::GetJobRequest* request,
                                  v1::GetJobResponse* response) {
  if (!script.jobs.jobs().empty()) *response->mutable_status() = script.jobs.jobs(0);
  response->mutable_spec()->mutable_data()->set_path("/data");
  return Record("GetJob", *request);
}

grpc::Status FakeOperator::Watch(grpc::ServerContext*, const v1::WatchRequest* request,
                                 grpc::ServerWriter<v1::WatchResponse>* writer) {
  const grpc::Status status = Record("Watch", *request);
  if (!status.ok()) return status;
  for (const v1::JobStatus& watched : script.watched) {
    v1::WatchResponse response;
    *response.mutable_status() = watched;
    writer->Write(response);
  }
  return script.watch_end;
}

template <typename Response>
void FakeOperator::Explain(Response& response) const {
  response.set_explanation(script.explanation);
  response.set_nothing_to_do(script.nothing_to_do);
}

grpc::Status FakeOperator::Pause(grpc::ServerContext*, const v1::PauseRequest* request,
                                 v1::PauseResponse* response) {
  Explain(*response);
  return Record("Pause", *request);
}

grpc::Status FakeOperator::Resume(grpc::ServerContext*, const v1::ResumeRequest* request,
                                  v1::ResumeResponse* response) {
  Explain(*response);
  return Record("Resume", *request);
}

grpc::Status FakeOperator::Cancel(grpc::ServerContext*, const v1::CancelRequest* request,
                                  v1::CancelResponse* response) {
  Explain(*response);
  return Record("Cancel", *request);
}

grpc::Status FakeOperator::Checkpoint(grpc::ServerContext*, const v1::CheckpointRequest* request,
                                      v1::CheckpointResponse*) {
  return Record("Checkpoint", *request);
}

grpc::Status FakeOperator::ListNodes(grpc::ServerContext*, const v1::ListNodesRequest* request,
                                     v1::ListNodesResponse* response) {
  *response = script.nodes;
  return Record("ListNodes", *request);
}

grpc::Status FakeOperator::AddNode(grpc::ServerContext*, const v1::AddNodeRequest* request,
                                   v1::AddNodeResponse* response) {
  response->set_token("secret");
  response->set_lifetime_seconds(600);
  response->set_ca_sha256("abc");
  response->set_coordinator("10.77.0.1:7070");
  return Record("AddNode", *request);
}

grpc::Status FakeOperator::ForgetNode(grpc::ServerContext*, const v1::ForgetNodeRequest* request,
                                      v1::ForgetNodeResponse*) {
  return Record("ForgetNode", *request);
}

grpc::Status FakeOperator::DrainNode(grpc::ServerContext*, const v1::DrainNodeRequest* request,
                                     v1::DrainNodeResponse* response) {
  response->set_explanation(script.explanation);
  return Record("DrainNode", *request);
}

grpc::Status FakeOperator::AllowNode(grpc::ServerContext*, const v1::AllowNodeRequest* request,
                                     v1::AllowNodeResponse* response) {
  response->set_explanation(script.explanation);
  return Record("AllowNode", *request);
}

grpc::Status FakeOperator::SetNode(grpc::ServerContext*, const v1::SetNodeRequest* request,
                                   v1::SetNodeResponse* response) {
  response->set_explanation(script.explanation);
  return Record("SetNode", *request);
}

grpc::Status FakeOperator::Logs(grpc::ServerContext*, const v1::LogsRequest* request,
                                grpc::ServerWriter<v1::LogsResponse>* writer) {
  for (const std::string& text : script.log) {
    v1::LogsResponse response;
    response.set_text(text);
    writer->Write(response);
  }
  return Record("Logs", *request);
}

grpc::Status FakeOperator::ListEvents(grpc::ServerContext*, const v1::ListEventsRequest* request,
                                      v1::ListEventsResponse* response) {
  *response = script.events;
  return Record("ListEvents", *request);
}

CliResult RunCli(std::vector<std::string> arguments, const std::string& coordinator) {
  if (!coordinator.empty()) {
    arguments.insert(arguments.begin(), {"--coordinator", coordinator});
  }
  TextTerminal terminal;
  const int code = RunEspalier(arguments, terminal, RealClock());
  return {code, terminal.out, terminal.remarks};
}

v1::JobStatus RunningJob() {
  v1::JobStatus job;
  job.set_id("3f2a9c1e");
  job.set_name("quickstart");
  job.set_state(v1::JOB_STATE_RUNNING);
  job.set_reason("2 ranks agreed on step 0");
  job.set_generation(1);
  job.set_step(512);
  job.set_total_steps(1500);
  job.set_loss(2.13449);
  job.set_tokens_per_second(12345);
  job.set_eta_seconds(100);
  job.set_submitted_ms(1799999900000);
  job.set_state_since_ms(1799999928000);
  job.set_validation_loss(2.2);
  job.set_validation_step(500);
  job.set_checkpoint_directory("/state/jobs/3f2a9c1e/checkpoints");
  job.set_gradient_norm(0.8214);
  job.set_learning_rate(3e-4);
  job.mutable_last_checkpoint()->set_step(500);
  job.mutable_last_checkpoint()->set_path("/state/jobs/3f2a9c1e/checkpoints/step-00000500");
  job.mutable_last_checkpoint()->set_bytes(12345678);
  job.mutable_last_checkpoint()->set_seconds(0.25);
  job.mutable_plan()->set_number(1);
  job.mutable_plan()->set_reason("even: no measurements yet");
  job.mutable_plan()->set_decided_ms(1799999928000);
  job.set_imbalance(0.016);
  for (int i = 0; i < 2; ++i) {
    v1::RankStatus& rank = *job.add_ranks();
    rank.mutable_speed()->set_constant_seconds(0.01);
    rank.mutable_speed()->set_seconds_per_sequence(i == 0 ? 0.0125 : 0.0363);
    rank.mutable_speed()->set_predicted_seconds(i == 0 ? 0.16 : 0.1552);
    rank.mutable_speed()->set_measured_seconds(0.1581);
    rank.mutable_speed()->set_measurements(500);
    rank.set_rank(i);
    rank.set_node(i == 0 ? "studio" : "macbook");
    rank.set_attached(true);
    rank.set_phase(i == 0 ? v1::PHASE_EXCHANGE : v1::PHASE_COMPUTE);
    rank.set_step(512);
    rank.set_shard(i == 0 ? 12 : 4);
    rank.set_memory_bytes(412300000);
    rank.set_memory_peak_bytes(500000000);
    rank.mutable_last_step()->set_memory_limit_bytes(2000000000);
    rank.mutable_last_step()->set_micro_batch(4);
    rank.set_device("cpu");
    rank.set_pid(4242 + i);
    rank.mutable_last_step()->set_step_seconds(0.1662);
    job.mutable_plan()->add_sequences(rank.shard());
  }
  return job;
}

}  // namespace espalier::ctl
