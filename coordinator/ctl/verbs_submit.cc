// submit, validate: verbs that read a job file. Everything in it is checked here, before any
// coordinator is asked; espalierd checks the spec again.
#include <fstream>
#include <memory>
#include <random>
#include <sstream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "common/config/cluster_file.h"
#include "common/config/job_file.h"
#include "coordinator/ctl/client.h"
#include "coordinator/ctl/data_check.h"
#include "coordinator/ctl/follow.h"
#include "coordinator/ctl/json.h"
#include "coordinator/ctl/render.h"
#include "coordinator/ctl/verbs.h"

namespace espalier::ctl {
namespace {

struct Options {
  std::string file;
  std::vector<std::string> settings;
  bool wait = false;
  bool all_here = false;  // what is missing on this machine is an error
};

void AddFileOptions(CLI::App* verb, Options& options) {
  verb->add_option("FILE", options.file, "Job file (YAML)")->required();
  verb->add_option("--set", options.settings, "Override a value, for example train.steps=100")
      ->type_name("KEY=VALUE")
      ->expected(1)
      ->take_all();
}

// So that a submission repeated after a lost answer makes one job.
std::string NewRequestId() {
  std::random_device random;
  return absl::StrFormat("%08x%08x%08x%08x", random(), random(), random(), random());
}

std::string TextOf(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

absl::StatusOr<v1::JobSpec> LoadAndCheck(const Options& options) {
  ASSIGN_OR_RETURN(v1::JobSpec spec, LoadJobFile(options.file, options.settings));
  RETURN_IF_ERROR(CheckData(spec));
  const absl::Status model = CheckModel(spec);
  const bool elsewhere = absl::IsNotFound(model) || absl::IsPermissionDenied(model);
  if (model.ok() || (elsewhere && !options.all_here)) return spec;
  return model;
}

absl::StatusOr<std::string> SendJob(OperatorClient& client, const Options& options) {
  v1::SubmitRequest request;
  ASSIGN_OR_RETURN(*request.mutable_spec(), LoadAndCheck(options));
  request.set_yaml(TextOf(options.file));
  request.set_request_id(NewRequestId());
  v1::SubmitResponse response;
  RETURN_IF_ERROR(client.Call(&v1::OperatorService::Stub::Submit, request, response));
  return response.job_id();
}

absl::StatusOr<ExitCode> SubmitAndWait(Context& context, OperatorClient& client,
                                       const std::string& id) {
  if (!context.options.json()) {
    context.terminal.Out(id + "\n");
    ASSIGN_OR_RETURN(const v1::JobStatus last, ShowProgress(context, client, id));
    return ExitCodeAfter(last);
  }
  ASSIGN_OR_RETURN(const v1::JobStatus last, WaitForEnd(client, id));
  context.terminal.Out(JsonText(nlohmann::ordered_json{{"job_id", id}, {"status", ToJson(last)}}));
  return ExitCodeAfter(last);
}

absl::StatusOr<ExitCode> Submit(Context& context, const Options& options) {
  ASSIGN_OR_RETURN(OperatorClient client, OperatorClient::Connect(context));
  ASSIGN_OR_RETURN(const std::string id, SendJob(client, options));
  if (options.wait) return SubmitAndWait(context, client, id);
  if (context.options.json()) {
    context.terminal.Out(JsonText(nlohmann::ordered_json{{"job_id", id}}));
    return kDone;
  }
  context.terminal.Out(id + "\n");
  if (context.terminal.interactive()) {
    context.terminal.Remark("queued; follow with: espalier watch " + id + "\n");
  }
  return kDone;
}

absl::StatusOr<ExitCode> Validate(Context& context, const Options& options) {
  ASSIGN_OR_RETURN(const v1::JobSpec spec, LoadAndCheck(options));
  for (const std::string& remark : {DataRemark(spec), ProgramRemark(spec)}) {
    if (!remark.empty()) context.terminal.Remark(absl::StrCat("note: ", remark, "\n"));
  }
  context.terminal.Out(context.options.json() ? JsonText(nlohmann::ordered_json{
                                                    {"valid", true}, {"spec", ToJson(spec)}})
                                              : RenderSpec(spec, options.file));
  return kDone;
}

}  // namespace

void AddValidate(VerbTable verbs) {
  auto options = std::make_shared<Options>();
  CLI::App* verb =
      AddVerb(verbs.app, "validate", "Check a job file without submitting it",
              "espalier validate job.yaml\nespalier validate job.yaml --set train.steps=100");
  AddFileOptions(verb, *options);
  options->all_here = true;
  verb->callback([verbs, options] {
    verbs.chosen = [options](Context& context) { return Validate(context, *options); };
  });
}

void AddSubmitVerbs(VerbTable verbs) {
  auto options = std::make_shared<Options>();
  CLI::App* verb = AddVerb(verbs.app, "submit", "Queue a job; prints its id",
                           "espalier submit job.yaml --set train.steps=100 --set name=short\n"
                           "id=$(espalier submit job.yaml) && espalier watch \"$id\"");
  AddFileOptions(verb, *options);
  verb->add_flag("--wait", options->wait, "Follow it to its end; the exit code tells how it ended");
  verb->callback([verbs, options] {
    verbs.chosen = [options](Context& context) { return Submit(context, *options); };
  });
  AddValidate(verbs);
}

// Every key that a file may hold, made from the schema that checks it.
void AddReferenceVerb(VerbTable verbs) {
  CLI::App* reference =
      AddVerb(verbs.app, "reference", "List every key of job and cluster files",
              "espalier reference job | grep schedule\nespalier reference cluster");
  reference->require_subcommand(1);
  const auto add = [&](const std::string& file, std::string (*text)()) {
    CLI::App* verb = AddVerb(*reference, file, "Keys of a " + file + " file: type, range, default",
                             "espalier reference " + file);
    verb->callback([verbs, text] {
      verbs.chosen = [text](Context& context) -> absl::StatusOr<ExitCode> {
        context.terminal.Out(
            context.options.json() ? JsonText(nlohmann::ordered_json{{"text", text()}}) : text());
        return kDone;
      };
    });
  };
  add("job", JobFileReference);
  add("cluster", ClusterFileReference);
}

}  // namespace espalier::ctl
