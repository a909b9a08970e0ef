// reference job, cluster: every key that a file may hold, made from the schema that checks it.
#include "common/config/cluster_file.h"
#include "common/config/job_file.h"
#include "coordinator/ctl/json.h"
#include "coordinator/ctl/verbs.h"

namespace espalier::ctl {

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
