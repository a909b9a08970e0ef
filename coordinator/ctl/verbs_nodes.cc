// nodes, nodes add, nodes drain, nodes allow, nodes set, nodes forget: the machines of the cluster.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "coordinator/ctl/client.h"
#include "coordinator/ctl/json.h"
#include "coordinator/ctl/render.h"
#include "coordinator/ctl/verbs.h"

namespace espalier::ctl {
namespace {

using Stub = v1::OperatorService::Stub;

template <typename Request, typename Response>
absl::Status Ask(Context& context,
                 grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                 const Request& request, Response& response) {
  absl::StatusOr<OperatorClient> client = OperatorClient::Connect(context);
  return client.ok() ? client->Call(method, request, response) : client.status();
}

absl::StatusOr<ExitCode> List(Context& context) {
  v1::ListNodesResponse response;
  const absl::Status asked = Ask(context, &Stub::ListNodes, v1::ListNodesRequest(), response);
  if (!asked.ok()) return asked;
  context.terminal.Out(context.options.json()
                           ? JsonText(ToJson(response))
                           : RenderNodes(response, context.terminal.view(context.clock)));
  return kDone;
}

// The line alone goes to standard output, so that it can be sent on.
absl::StatusOr<ExitCode> Add(Context& context, const v1::AddNodeRequest& request) {
  v1::AddNodeResponse response;
  const absl::Status asked = Ask(context, &Stub::AddNode, request, response);
  if (!asked.ok()) return asked;
  const std::string line =
      absl::StrCat("espalier-agent join ", response.coordinator(), " --name ", request.node(),
                   " --token ", response.token(), " --ca-sha256 ", response.ca_sha256());
  if (context.options.json()) {
    nlohmann::ordered_json json = ToJson(response);
    json["command"] = line;
    context.terminal.Out(JsonText(json));
    return kDone;
  }
  context.terminal.Out(line + "\n");
  context.terminal.Remark(
      absl::StrCat("run that line on ", request.node(), " within ",
                   absl::FormatDuration(absl::Seconds(response.lifetime_seconds())),
                   "; it is good for one machine, once, so keep it to yourself\n"));
  return kDone;
}

absl::StatusOr<ExitCode> Forget(Context& context, const v1::ForgetNodeRequest& request) {
  v1::ForgetNodeResponse response;
  const absl::Status asked = Ask(context, &Stub::ForgetNode, request, response);
  if (!asked.ok()) return asked;
  if (context.options.json()) context.terminal.Out(JsonText(ToJson(response)));
  context.terminal.Remark("forgotten\n");
  return kDone;
}

// What is asked of one node, and answered by what that will do.
template <typename Request, typename Response>
absl::StatusOr<ExitCode> AskOfNode(Context& context,
                                   grpc::Status (Stub::*method)(grpc::ClientContext*,
                                                                const Request&, Response*),
                                   const Request& request) {
  Response response;
  const absl::Status asked = Ask(context, method, request, response);
  if (!asked.ok()) return asked;
  context.terminal.Out(context.options.json()
                           ? JsonText(ToJson(response))
                           : absl::StrCat(request.node(), ": ", response.explanation(), "\n"));
  return kDone;
}

// What jobs may do on a node, and what takes hours back that it had.
struct PolicyWords {
  // Made when the first word of it is read.
  std::function<v1::NodeSpec&()> policy;
  std::function<void()> all_hours;
  std::function<void()> no_quiet_hours;
};

void AddHours(CLI::App& verb, const PolicyWords& words) {
  using Texts = std::vector<std::string>;
  const auto take = [](const char* none, const std::function<void()>& clear, const auto& add) {
    return [none, clear, add](const Texts& texts) {
      for (const std::string& text : texts) text == none ? clear() : add(text);
    };
  };
  verb.add_option_function<Texts>(
          "--hours",
          take("all", words.all_hours,
               [p = words.policy](const auto& text) { p().add_hours(text); }),
          "Hours at which jobs may use it, by its own time of day, as 22:00-07:30; may be given "
          "several times; all: no matter when")
      ->type_name("HH:MM-HH:MM")
      ->allow_extra_args(false);
  verb.add_option_function<Texts>(
          "--quiet-hours",
          take("none", words.no_quiet_hours,
               [p = words.policy](const auto& text) { p().add_quiet_hours(text); }),
          "Hours at which it is spared, as those of --hours; none: at no hour")
      ->type_name("HH:MM-HH:MM")
      ->allow_extra_args(false);
}

void AddPolicy(CLI::App& verb, const PolicyWords& words) {
  const std::function<v1::NodeSpec&()>& policy = words.policy;
  const auto part = [&](const char* name, const char* help, void (v1::NodeSpec::*set)(double)) {
    verb.add_option_function<double>(
            name, [policy, set](double value) { (policy().*set)(value); }, help)
        ->type_name("PART");
  };
  verb.add_option_function<std::string>(
          "--on-battery", [policy](const std::string& what) { policy().set_on_battery(what); },
          "What jobs do while it runs on its battery: leave, slow (it is spared) or ignore; they "
          "leave a battery that is low in any case")
      ->type_name("WHAT");
  verb.add_option_function<int32_t>(
          "--least-battery", [policy](int32_t left) { policy().set_least_battery_percent(left); },
          "Jobs leave it when no more than this is left in its battery; 0: never")
      ->type_name("PERCENT");
  verb.add_option_function<std::string>(
          "--on-heat", [policy](const std::string& what) { policy().set_on_heat(what); },
          "What jobs do there while the system calls its heat critical: leave or ignore")
      ->type_name("WHAT");
  AddHours(verb, words);
  part("--largest-share", "The largest part of a job's global batch that it computes, as 0.3",
       &v1::NodeSpec::set_largest_share);
  verb.add_option_function<bool>(
          "--yield-to-user", [policy](bool yields) { policy().set_yield_to_user(yields); },
          "Whether it is spared while somebody works there: true or false")
      ->type_name("BOOL");
  part("--spared-share", "What it gets of its share while it is spared, as 0.5",
       &v1::NodeSpec::set_spared_share);
}

void AddAdd(VerbTable verbs) {
  auto request = std::make_shared<v1::AddNodeRequest>();
  CLI::App* verb = AddVerb(verbs.app, "add", "Print the line with which a machine becomes a node",
                           "espalier nodes add macbook --address 10.77.0.2");
  verb->add_option_function<std::string>(
          "NAME", [request](const std::string& name) { request->set_node(name); },
          "What the node is to be called")
      ->required();
  verb->add_option_function<std::string>(
          "--address", [request](const std::string& address) { request->set_address(address); },
          "Its IP address, over which MPI is to go")
      ->required()
      ->type_name("IP");
  verb->add_option_function<std::string>(
          "--device", [request](const std::string& device) { request->set_device(device); },
          "auto, cpu, cuda or mps; default: the profile's, else auto")
      ->type_name("DEVICE");
  verb->add_option_function<std::string>(
          "--profile", [request](const std::string& profile) { request->set_profile(profile); },
          "What kind of machine it is: one of configs/nodes, for its memory limit, threads and "
          "speed")
      ->type_name("PROFILE");
  AddPolicy(*verb,
            {[request]() -> v1::NodeSpec& { return *request->mutable_policy(); }, [] {}, [] {}});
  verb->callback([verbs, request] {
    verbs.chosen = [request](Context& context) { return Add(context, *request); };
  });
}

void AddDrain(VerbTable verbs) {
  auto request = std::make_shared<v1::DrainNodeRequest>();
  CLI::App* verb =
      AddVerb(verbs.app, "drain", "Have jobs leave a node, with a checkpoint, and none start there",
              "espalier nodes drain macbook --reason \"back on Monday\"");
  verb->add_option_function<std::string>(
          "NAME", [request](const std::string& name) { request->set_node(name); }, "The node")
      ->required();
  verb->add_option_function<std::string>(
          "--reason", [request](const std::string& reason) { request->set_reason(reason); },
          "Shown wherever the node is")
      ->type_name("TEXT");
  verb->callback([verbs, request] {
    verbs.chosen = [request](Context& context) {
      return AskOfNode(context, &Stub::DrainNode, *request);
    };
  });
}

void AddAllow(VerbTable verbs) {
  auto request = std::make_shared<v1::AllowNodeRequest>();
  CLI::App* verb = AddVerb(verbs.app, "allow", "Let jobs use a node that was drained or set aside",
                           "espalier nodes allow macbook");
  verb->add_option_function<std::string>(
          "NAME", [request](const std::string& name) { request->set_node(name); }, "The node")
      ->required();
  verb->callback([verbs, request] {
    verbs.chosen = [request](Context& context) {
      return AskOfNode(context, &Stub::AllowNode, *request);
    };
  });
}

void AddSet(VerbTable verbs) {
  auto request = std::make_shared<v1::SetNodeRequest>();
  CLI::App* verb =
      AddVerb(verbs.app, "set", "Change what jobs may do on a node that has joined",
              "espalier nodes set macbook --on-battery slow --quiet-hours 22:00-07:00\n"
              "espalier nodes set macbook --hours all");
  verb->add_option_function<std::string>(
          "NAME", [request](const std::string& name) { request->set_node(name); }, "The node")
      ->required();
  AddPolicy(*verb, {[request]() -> v1::NodeSpec& { return *request->mutable_policy(); },
                    [request] { request->set_clear_hours(true); },
                    [request] { request->set_clear_quiet_hours(true); }});
  verb->callback([verbs, request] {
    verbs.chosen = [request](Context& context) {
      return AskOfNode(context, &Stub::SetNode, *request);
    };
  });
}

void AddForget(VerbTable verbs) {
  auto request = std::make_shared<v1::ForgetNodeRequest>();
  CLI::App* verb = AddVerb(
      verbs.app, "forget", "Forget a node's agent; one that has joined is no node any more",
      "espalier nodes forget macbook            back to the remote shell, or out of the cluster\n"
      "espalier nodes forget macbook --revoke   its certificate is refused from now on");
  verb->add_option_function<std::string>(
          "NAME", [request](const std::string& name) { request->set_node(name); }, "The node")
      ->required();
  verb->add_flag_function(
      "--revoke", [request](int64_t) { request->set_revoke(true); },
      "Refuse its certificates for ever (always so for a node that has joined)");
  verb->callback([verbs, request] {
    verbs.chosen = [request](Context& context) { return Forget(context, *request); };
  });
}

}  // namespace

void AddNodeVerbs(VerbTable verbs) {
  CLI::App* nodes =
      AddVerb(verbs.app, "nodes", "List the nodes and what they do; add, drain, allow, set, forget",
              "espalier nodes\n"
              "espalier nodes -o json\n"
              "espalier nodes add macbook --address 10.77.0.2\n"
              "espalier nodes drain macbook\n"
              "espalier nodes forget macbook");
  nodes->alias("node");  // `espalier node drain macbook` reads better of one
  nodes->require_subcommand(0, 1);
  nodes->callback([verbs, nodes] {
    if (nodes->get_subcommands().empty()) verbs.chosen = List;
  });
  AddAdd({*nodes, verbs.chosen});
  AddDrain({*nodes, verbs.chosen});
  AddAllow({*nodes, verbs.chosen});
  AddSet({*nodes, verbs.chosen});
  AddForget({*nodes, verbs.chosen});
}

}  // namespace espalier::ctl
