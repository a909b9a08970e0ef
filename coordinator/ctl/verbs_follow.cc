// watch, logs: verbs that may last as long as the job.
#include <memory>
#include <optional>
#include <string>

#include "coordinator/ctl/client.h"
#include "coordinator/ctl/follow.h"
#include "coordinator/ctl/json.h"
#include "coordinator/ctl/verbs.h"

namespace espalier::ctl {
namespace {

void AddWatch(VerbTable verbs) {
  auto job = std::make_shared<std::string>();
  CLI::App* verb =
      AddVerb(verbs.app, "watch", "Follow a job's progress until it ends",
              "espalier watch quickstart-1\nespalier watch quickstart-1 -o json | jq .status.loss");
  AddJobArgument(verb, *job);
  verb->callback([verbs, job] {
    verbs.chosen = [job](Context& context) -> absl::StatusOr<ExitCode> {
      absl::StatusOr<OperatorClient> client = OperatorClient::Connect(context);
      if (!client.ok()) return client.status();
      const absl::StatusOr<v1::JobStatus> last = ShowProgress(context, *client, *job);
      if (!last.ok()) return last.status();
      return ExitCodeAfter(*last);
    };
  });
}

void AddLogs(VerbTable verbs) {
  struct Options {
    std::string job;
    bool follow = false;
    std::optional<int32_t> rank;
    std::optional<int64_t> generation;
  };
  auto options = std::make_shared<Options>();
  CLI::App* verb =
      AddVerb(verbs.app, "logs", "Print what a job's workers logged, oldest first",
              "espalier logs quickstart-1 -f\nespalier logs quickstart-1 --rank 1 --generation 2");
  AddJobArgument(verb, options->job);
  verb->add_flag("-f,--follow", options->follow, "Go on until the job ends");
  verb->add_option("--rank", options->rank, "Only lines of this rank")->type_name("N");
  verb->add_option("--generation", options->generation, "Only this generation")->type_name("N");
  verb->callback([verbs, options] {
    verbs.chosen = [options](Context& context) -> absl::StatusOr<ExitCode> {
      absl::StatusOr<OperatorClient> client = OperatorClient::Connect(context);
      if (!client.ok()) return client.status();
      v1::LogsRequest request;
      request.set_job_id(options->job);
      request.set_follow(options->follow);
      if (options->rank.has_value()) request.set_rank(*options->rank);
      if (options->generation.has_value()) request.set_generation(*options->generation);
      const absl::Status status = client->Logs(request, [&](const std::string& text) {
        return context.terminal.Out(
            context.options.json() ? JsonLine(nlohmann::ordered_json{{"text", text}}) : text);
      });
      if (!status.ok()) return status;
      return kDone;
    };
  });
}

}  // namespace

void AddFollowVerbs(VerbTable verbs) {
  AddWatch(verbs);
  AddLogs(verbs);
}

}  // namespace espalier::ctl
