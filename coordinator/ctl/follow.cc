#include "coordinator/ctl/follow.h"

#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "coordinator/ctl/json.h"
#include "coordinator/ctl/progress_view.h"
#include "coordinator/ctl/verbs.h"

namespace espalier::ctl {
namespace {

constexpr absl::Duration kPlainInterval = absl::Seconds(2);

// Shows statuses in one of the three forms; Show returns false when nobody reads any more.
class Display {
 public:
  explicit Display(Context& context) : context_(context), plain_(kPlainInterval) {}

  bool Show(const v1::JobStatus& status) {
    const View view = context_.terminal.view(context_.clock);
    if (context_.options.json()) {
      return ShowOnce(JsonLine(nlohmann::ordered_json{{"status", ToJson(status)}}));
    }
    if (context_.terminal.interactive()) {
      const std::string frame = RenderFrame(status, view);
      const std::string codes = Redraw(previous_, frame);
      previous_ = frame;
      return context_.terminal.Out(codes);
    }
    const std::optional<std::string> line = plain_.Next(status, view);
    return !line.has_value() || context_.terminal.Out(*line);
  }

  void Interrupted(const absl::Status& why) {
    if (warned_) return;
    warned_ = true;
    previous_.clear();
    context_.terminal.Remark("espalier: the coordinator went away; trying to reach it again\n");
  }

 private:
  // A tick without news repeats nothing.
  bool ShowOnce(std::string line) {
    if (line == previous_) return true;
    previous_ = std::move(line);
    return context_.terminal.Out(previous_);
  }

  Context& context_;
  PlainProgress plain_;
  std::string previous_;
  bool warned_ = false;
};

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

absl::StatusOr<v1::JobStatus> ShowProgress(Context& context, OperatorClient& client,
                                           const std::string& job) {
  Display display(context);
  return client.Follow(
      job, [&](const v1::JobStatus& status) { return display.Show(status); },
      [&](const absl::Status& why) { display.Interrupted(why); });
}

absl::StatusOr<v1::JobStatus> WaitForEnd(OperatorClient& client, const std::string& job) {
  return client.Follow(
      job, [](const v1::JobStatus&) { return true; }, [](const absl::Status&) {});
}

ExitCode ExitCodeAfter(const v1::JobStatus& status) {
  return IsFinal(status.state()) ? ExitCodeOf(status.state()) : kDone;
}

void AddFollowVerbs(VerbTable verbs) {
  AddWatch(verbs);
  AddLogs(verbs);
}

}  // namespace espalier::ctl
