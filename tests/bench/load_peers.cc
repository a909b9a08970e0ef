#include "tests/bench/load_peers.h"

#include <grpcpp/create_channel.h>

#include <algorithm>
#include <chrono>

#include "common/config/job_file.h"

namespace espalier::bench {
namespace {

std::string NodeOf(int index) { return "node" + std::to_string(index); }

}  // namespace

std::shared_ptr<grpc::Channel> Connect(const std::string& target) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments);
}

Agent::Agent(const std::string& target, int index)
    : stub_(v1::AgentService::NewStub(Connect(target))) {
  v1::AgentHello& hello = *outgoing_.mutable_hello();
  hello.set_node(NodeOf(index));
  hello.set_instance("load");
  FillReport(*hello.mutable_report());
  stub_->async()->Attach(&context_, this);
  SayHello();
}

// As large as a real one.
void Agent::FillReport(v1::NodeReport& report) {
  report.mutable_versions()->set_espalier(ESPALIER_VERSION);
  report.mutable_versions()->set_open_mpi("4.1.4");
  report.mutable_versions()->set_libtorch("1.13.1");
  v1::NodeResources& resources = *report.mutable_resources();
  resources.set_system("Linux 6.1.0 x86_64");
  resources.set_processor("a simulated processor at 3.00 GHz");
  resources.set_performance_cores(8);
  resources.set_memory_bytes(int64_t{64} << 30);
  resources.set_memory_available_bytes((int64_t{48} << 30) + (++reports_ << 12));
  resources.set_disk_free_bytes(int64_t{500} << 30);
  report.mutable_condition()->set_power(v1::NODE_POWER_MAINS);
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  report.set_unix_seconds(std::chrono::duration<double>(now).count());
}

Worker::Worker(const std::string& target, int index, int ranks_per_job)
    : stub_(v1::WorkerService::NewStub(Connect(target))) {
  const std::string name = "load-" + std::to_string(index / ranks_per_job);
  v1::Hello& hello = *outgoing_.mutable_hello();
  hello.set_rank(index % ranks_per_job);
  hello.set_world_size(ranks_per_job);
  hello.set_node(NodeOf(index));
  hello.set_pid(1000 + index);
  hello.set_version(ESPALIER_VERSION);
  hello.set_external_id(name);
  v1::JobSpec& spec = *hello.mutable_external_spec();
  spec.set_name(name);
  spec.mutable_model()->set_preset("nano");
  spec.mutable_data()->set_path("/simulated");
  spec.mutable_train()->set_steps(1'000'000'000);
  spec.mutable_train()->set_global_batch(ranks_per_job);
  spec.mutable_parallel()->set_min_nodes(ranks_per_job);
  // The first to attach are silent until the last one has, on a busy machine for long.
  spec.mutable_health()->set_failure_timeout_seconds(60);
  FillJobDefaults(spec);
  stub_->async()->Attach(&context_, this);
  SayHello();
}

void Worker::Fill(v1::AttachRequest& message) {
  const int64_t number = beats_++;
  if (number == 0) {
    message.mutable_ready()->set_next_step(0);
  } else if (number % 4 == 0) {
    v1::StepReport& step = *message.mutable_step();
    step.set_step(number / 4 - 1);
    step.set_loss(2.5);
    step.set_tokens(4096);
    step.set_step_seconds(1);
    step.set_compute_seconds(0.9);
    step.set_exchange_wait_seconds(0.1);
    step.set_memory_bytes(int64_t{4} << 30);
  } else {
    v1::Progress& progress = *message.mutable_progress();
    progress.set_step(std::max<int64_t>(0, (number - 1) / 4 - 1));
    progress.set_phase(v1::PHASE_COMPUTE);
    progress.set_work(number);
    progress.set_collective(number);
    progress.set_memory_bytes(int64_t{4} << 30);
    progress.set_memory_peak_bytes(int64_t{5} << 30);
  }
}

Watcher::Watcher(const std::string& target, const std::string& job)
    : stub_(v1::OperatorService::NewStub(Connect(target))) {
  request_.set_job_id(job);
  stub_->async()->Watch(&context_, &request_, this);
  StartRead(&incoming_);
  StartCall();
}

}  // namespace espalier::bench
