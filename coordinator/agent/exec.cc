#include "coordinator/agent/exec.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <iostream>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "common/rpc/call.h"
#include "common/rpc/channel.h"
#include "coordinator/launcher/node_agents.h"
#include "espalier/v1/agent.grpc.pb.h"

namespace espalier {
namespace {

constexpr int kFailed = 255;

int Fail(const absl::Status& status) {
  std::cerr << "espalier-agent exec: " << status.message() << std::endl;
  return kFailed;
}

absl::StatusOr<std::string> Required(const ReadVariable& variable, const char* name) {
  std::optional<std::string> value = variable(name);
  if (value && !value->empty()) return *std::move(value);
  return absl::FailedPreconditionError(absl::StrCat(
      name, " is not set; mpirun starts this when espalierd has started mpirun, people do not"));
}

// The node of a host as mpirun knows it; nullopt: not a node with an agent.
std::optional<std::string> NodeOf(const std::string& host, const ReadVariable& variable) {
  const std::string nodes = variable(kExecNodes).value_or("");
  for (absl::string_view entry : absl::StrSplit(nodes, ',', absl::SkipEmpty())) {
    const std::vector<std::string> pair = absl::StrSplit(entry, absl::MaxSplits('=', 1));
    if (pair.size() == 2 && pair[0] == host) return pair[1];
  }
  return std::nullopt;
}

int RunRemoteShell(const std::vector<std::string>& words, const ReadVariable& variable) {
  std::vector<std::string> argv =
      absl::StrSplit(variable(kExecRemoteShell).value_or("ssh"), ' ', absl::SkipEmpty());
  argv.insert(argv.end(), words.begin(), words.end());
  std::vector<char*> pointers;
  for (std::string& word : argv) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  execvp(pointers[0], pointers.data());
  return Fail(absl::NotFoundError(absl::StrCat("cannot run ", argv[0], ": ", strerror(errno))));
}

absl::StatusOr<v1::ExecRequest> MakeRequest(const std::string& node,
                                            const std::vector<std::string>& words,
                                            const ReadVariable& variable) {
  v1::ExecRequest request;
  ASSIGN_OR_RETURN(*request.mutable_generation()->mutable_job_id(), Required(variable, kExecJob));
  ASSIGN_OR_RETURN(const std::string generation, Required(variable, kExecGeneration));
  int64_t number = 0;
  if (!absl::SimpleAtoi(generation, &number)) {
    return absl::InvalidArgumentError(absl::StrCat(kExecGeneration, " is '", generation, "'"));
  }
  request.mutable_generation()->set_generation(number);
  ASSIGN_OR_RETURN(*request.mutable_secret(), Required(variable, kExecSecret));
  request.set_node(node);
  for (size_t i = 1; i < words.size(); ++i) request.add_command(words[i]);
  return request;
}

int Report(const v1::DaemonExited& exited, const std::string& node) {
  if (!exited.error().empty()) {
    return Fail(absl::UnknownError(absl::StrCat("node ", node, ": ", exited.error())));
  }
  std::cerr << exited.output() << std::flush;
  if (exited.signal() == 0) return exited.code();
  return Fail(absl::AbortedError(
      absl::StrCat("Open MPI's daemon on node ", node, " was killed by signal ", exited.signal())));
}

absl::StatusOr<int> RunOnNode(const std::string& node, const std::vector<std::string>& words,
                              const ReadVariable& variable, Clock& clock) {
  ASSIGN_OR_RETURN(const v1::ExecRequest request, MakeRequest(node, words, variable));
  ASSIGN_OR_RETURN(const std::string coordinator, Required(variable, kExecCoordinator));
  ASSIGN_OR_RETURN(const ChannelTarget target, MakeTarget(coordinator, std::nullopt, ""));
  ASSIGN_OR_RETURN(const std::shared_ptr<grpc::Channel> channel, MakeChannel(target, clock));
  const auto stub = v1::AgentService::NewStub(channel);
  grpc::ClientContext context;
  PrepareCall(context, target, kStreamDeadline);
  const auto stream = stub->Exec(&context, request);
  bool started = false;
  v1::ExecResponse response;
  while (stream->Read(&response)) {
    if (response.has_started()) started = true;
    if (response.has_exited()) return Report(response.exited(), node);
  }
  const absl::Status ended = FromGrpc(stream->Finish());
  if (started) return 0;
  if (ended.ok()) return absl::UnavailableError("espalierd closed the stream");
  return ended;
}

}  // namespace

int RunExec(const std::vector<std::string>& words, const ReadVariable& variable, Clock& clock) {
  if (words.size() < 2) return Fail(absl::InvalidArgumentError("needs HOST and COMMAND"));
  const std::optional<std::string> node = NodeOf(words[0], variable);
  if (!node) return RunRemoteShell(words, variable);
  const absl::StatusOr<int> code = RunOnNode(*node, words, variable, clock);
  return code.ok() ? *code : Fail(code.status());
}

}  // namespace espalier
