#include "coordinator/agent/command_stream.h"

#include <utility>

#include "common/rpc/call.h"

namespace espalier {

CommandStream::CommandStream(const ChannelTarget& target, v1::AgentService::Stub& stub,
                             const v1::AgentHello& hello) {
  PrepareCall(context_, target, kStreamDeadline);
  stream_ = stub.Attach(&context_);
  reader_ = std::thread([this, hello] { Read(hello); });
}

CommandStream::~CommandStream() {
  Cancel();
  if (reader_.joinable()) reader_.join();
}

void CommandStream::Read(const v1::AgentHello& hello) {
  v1::AgentMessage message;
  *message.mutable_hello() = hello;
  stream_->Write(message);  // what goes wrong, reading sees
  v1::AgentCommand command;
  while (stream_->Read(&command)) {
    absl::MutexLock lock(&mutex_);
    commands_.push_back(std::move(command));
    changed_.WakeAll();
  }
  absl::MutexLock lock(&mutex_);
  over_ = true;
  changed_.WakeAll();
}

bool CommandStream::Write(const v1::AgentMessage& message) {
  return !over() && stream_->Write(message);
}

std::vector<v1::AgentCommand> CommandStream::Take(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  changed_.Wait(mutex_, timeout, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return over_ || !commands_.empty();
  });
  std::vector<v1::AgentCommand> commands(commands_.begin(), commands_.end());
  commands_.clear();
  return commands;
}

bool CommandStream::over() const {
  absl::MutexLock lock(&mutex_);
  return over_;
}

void CommandStream::Cancel() { context_.TryCancel(); }

absl::Status CommandStream::Finish() {
  if (reader_.joinable()) reader_.join();
  return FromGrpc(stream_->Finish());
}

}  // namespace espalier
