// jobs, job, events: verbs that ask once and show the answer.
#include <memory>

#include "coordinator/ctl/client.h"
#include "coordinator/ctl/json.h"
#include "coordinator/ctl/render.h"
#include "coordinator/ctl/verbs.h"

namespace espalier::ctl {
namespace {

using Stub = v1::OperatorService::Stub;

// Calls the method, then shows the answer as JSON or with `render`.
template <typename Request, typename Response, typename Render>
absl::StatusOr<ExitCode> Show(Context& context,
                              grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                           Response*),
                              const Request& request, const Render& render) {
  absl::StatusOr<OperatorClient> client = OperatorClient::Connect(context);
  if (!client.ok()) return client.status();
  Response response;
  const absl::Status called = client->Call(method, request, response);
  if (!called.ok()) return called;
  context.terminal.Out(context.options.json()
                           ? JsonText(ToJson(response))
                           : render(response, context.terminal.view(context.clock)));
  return kDone;
}

std::string Ids(const v1::ListJobsResponse& response) {
  std::string out;
  for (const v1::JobStatus& job : response.jobs()) out += job.id() + "\n";
  return out;
}

void AddJobs(VerbTable verbs) {
  CLI::App* verb = AddVerb(verbs.app, "jobs", "List the jobs", "espalier jobs\nespalier jobs -q");
  auto quiet = std::make_shared<bool>(false);
  verb->add_flag("-q,--quiet", *quiet, "Only the ids, one a line");
  verb->callback([verbs, quiet] {
    verbs.chosen = [quiet](Context& context) {
      return Show(context, &Stub::ListJobs, v1::ListJobsRequest(),
                  [&](const v1::ListJobsResponse& response, const View& view) {
                    return *quiet ? Ids(response) : RenderJobs(response, view);
                  });
    };
  });
}

void AddJob(VerbTable verbs) {
  struct Options {
    std::string job;
    bool plan = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* verb = AddVerb(verbs.app, "job", "Show one job",
                           "espalier job quickstart-1 --plan\nespalier job validate job.yaml");
  verb->add_option("JOB", options->job, "Job id, a prefix of it, or its unique name");
  verb->add_flag("--plan", options->plan, "Also the shard plan, with the numbers it came from");
  verb->require_subcommand(0, 1);
  AddValidate({*verb, verbs.chosen});
  verb->callback([verbs, verb, options] {
    if (!verb->get_subcommands().empty()) return;
    if (options->job.empty()) throw CLI::RequiredError("JOB");
    verbs.chosen = [options](Context& context) {
      v1::GetJobRequest request;
      request.set_job_id(options->job);
      const Detail detail = options->plan ? Detail::kPlan : Detail::kSummary;
      return Show(context, &Stub::GetJob, request,
                  [&](const v1::GetJobResponse& response, const View& view) {
                    return RenderJob(response.status(), detail, view);
                  });
    };
  });
}

void AddEvents(VerbTable verbs) {
  struct Options {
    std::string job;
    int64_t after = 0;
  };
  auto options = std::make_shared<Options>();
  CLI::App* verb =
      AddVerb(verbs.app, "events", "List what happened to a job, oldest first",
              "espalier events quickstart-1\nespalier events quickstart-1 --after 12 -o json");
  AddJobArgument(verb, options->job);
  verb->add_option("--after", options->after, "Only events with a larger number")
      ->type_name("NUMBER");
  verb->callback([verbs, options] {
    verbs.chosen = [options](Context& context) {
      v1::ListEventsRequest request;
      request.set_job_id(options->job);
      request.set_after(options->after);
      return Show(context, &Stub::ListEvents, request, RenderEvents);
    };
  });
}

}  // namespace

void AddJobVerbs(VerbTable verbs) {
  AddJobs(verbs);
  AddJob(verbs);
  AddEvents(verbs);
}

}  // namespace espalier::ctl
