// pause, resume, cancel, checkpoint: verbs that ask for a change. They return when the request is
// journaled, not when it is done.
#include <memory>

#include "coordinator/ctl/client.h"
#include "coordinator/ctl/json.h"
#include "coordinator/ctl/verbs.h"

namespace espalier::ctl {
namespace {

using Stub = v1::OperatorService::Stub;

// Sends the request; then shows the answer as JSON, or what a pause frees on standard output and
// `remark` on standard error; when nothing was to do, how the job is instead.
template <typename Request, typename Response>
absl::StatusOr<ExitCode> Ask(Context& context,
                             grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                          Response*),
                             const Request& request, const std::string& remark) {
  absl::StatusOr<OperatorClient> client = OperatorClient::Connect(context);
  if (!client.ok()) return client.status();
  Response response;
  const absl::Status called = client->Call(method, request, response);
  if (!called.ok()) return called;
  if (context.options.json()) {
    context.terminal.Out(JsonText(ToJson(response)));
    return kDone;
  }
  if constexpr (!std::is_same_v<Response, v1::CheckpointResponse>) {
    if (response.nothing_to_do()) {
      context.terminal.Remark(response.explanation() + "\n");
      return kDone;
    }
  }
  if constexpr (std::is_same_v<Response, v1::PauseResponse>) {
    context.terminal.Out(response.explanation() + "\n");
  }
  context.terminal.Remark(remark + "\n");
  return kDone;
}

struct Options {
  std::string job;
  bool flag = false;
};

void AddPause(VerbTable verbs) {
  auto options = std::make_shared<Options>();
  CLI::App* verb =
      AddVerb(verbs.app, "pause", "Pause a job at the end of its step, and say what that frees",
              "espalier pause quickstart-1          stays in memory, resumes in under a second\n"
              "espalier pause quickstart-1 --hard   checkpoint, exit, free memory and nodes");
  AddJobArgument(verb, options->job);
  verb->add_flag("--hard", options->flag, "Write a checkpoint, exit, free memory and nodes");
  verb->callback([verbs, options] {
    verbs.chosen = [options](Context& context) {
      v1::PauseRequest request;
      request.set_job_id(options->job);
      request.set_hard(options->flag);
      return Ask(context, &Stub::Pause, request,
                 "pausing; go on with: espalier resume " + options->job);
    };
  });
}

void AddResume(VerbTable verbs) {
  auto options = std::make_shared<Options>();
  CLI::App* verb = AddVerb(
      verbs.app, "resume", "Let a paused job go on",
      "espalier resume quickstart-1\n"
      "espalier resume quickstart-1 --from-scratch   without the node that holds its state");
  AddJobArgument(verb, options->job);
  verb->add_flag("--from-scratch", options->flag,
                 "Of a job that waits for a node that holds its state: start with the newest that "
                 "other nodes hold, or from the beginning");
  verb->callback([verbs, options] {
    verbs.chosen = [options](Context& context) {
      v1::ResumeRequest request;
      request.set_job_id(options->job);
      request.set_from_scratch(options->flag);
      return Ask(context, &Stub::Resume, request,
                 "resuming; follow with: espalier watch " + options->job);
    };
  });
}

void AddCancel(VerbTable verbs) {
  auto options = std::make_shared<Options>();
  CLI::App* verb =
      AddVerb(verbs.app, "cancel", "End a job for good; its checkpoints stay",
              "espalier cancel quickstart-1\nespalier cancel quickstart-1 --checkpoint");
  AddJobArgument(verb, options->job);
  verb->add_flag("--checkpoint", options->flag, "Write a last checkpoint first");
  verb->callback([verbs, options] {
    verbs.chosen = [options](Context& context) {
      v1::CancelRequest request;
      request.set_job_id(options->job);
      request.set_checkpoint(options->flag);
      return Ask(context, &Stub::Cancel, request, "cancelling");
    };
  });
}

void AddCheckpoint(VerbTable verbs) {
  auto options = std::make_shared<Options>();
  CLI::App* verb = AddVerb(verbs.app, "checkpoint", "Write a checkpoint at the end of this step",
                           "espalier checkpoint quickstart-1");
  AddJobArgument(verb, options->job);
  verb->callback([verbs, options] {
    verbs.chosen = [options](Context& context) {
      v1::CheckpointRequest request;
      request.set_job_id(options->job);
      return Ask(context, &Stub::Checkpoint, request,
                 "asked for; see when it is there: espalier job " + options->job);
    };
  });
}

}  // namespace

void AddControlVerbs(VerbTable verbs) {
  AddPause(verbs);
  AddResume(verbs);
  AddCancel(verbs);
  AddCheckpoint(verbs);
}

}  // namespace espalier::ctl
