#include "coordinator/service/operator_service.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/address.h"
#include "common/base/sha256.h"
#include "common/base/utf8.h"
#include "common/config/cluster_file.h"
#include "common/config/job_file.h"
#include "common/config/rules.h"
#include "common/rpc/call.h"
#include "coordinator/planner/node_share.h"
#include "coordinator/service/job_folders.h"
#include "coordinator/service/pumped_writer.h"
#include "coordinator/service/sources.h"

namespace espalier {
namespace {

using Reactor = grpc::ServerUnaryReactor;

Reactor* FinishWith(grpc::CallbackServerContext* context, const absl::Status& status) {
  Reactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpc(status));
  return reactor;
}

// Hands `request` to the loop; `fill(answer)` runs before the call is finished.
template <typename Request, typename Fill>
Reactor* Hand(Inbox& inbox, grpc::CallbackServerContext* context, Request request, Fill fill) {
  Reactor* reactor = context->DefaultReactor();
  const bool taken =
      inbox.Put(OperatorCall{std::move(request), [reactor, fill](absl::StatusOr<Answer> answer) {
                               if (answer.ok()) fill(*answer);
                               reactor->Finish(ToGrpc(answer.status()));
                             }});
  if (!taken) {
    reactor->Finish(ToGrpc(absl::UnavailableError(
        "espalierd has too many requests waiting, or is stopping; try again")));
  }
  return reactor;
}

template <typename Response>
auto Explain(Response* response) {
  return [response](const Answer& answer) {
    response->set_explanation(answer.explanation);
    response->set_nothing_to_do(answer.nothing_to_do);
  };
}

constexpr int kTokenBytes = 16;
constexpr std::array<absl::string_view, 4> kDevices = {"auto", "cpu", "cuda", "mps"};

absl::Status CheckNewNode(const v1::AddNodeRequest& request, const View& view) {
  if (!IsName(request.node())) {
    return absl::InvalidArgumentError(
        absl::StrCat("the node's name is '", AsUtf8(request.node()), "'; allowed: ", kNameRule));
  }
  if (!IsIpAddress(request.address())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the node's address is '", AsUtf8(request.address()),
        "'; allowed: its IP address on the network that joins the nodes, given with --address"));
  }
  const bool device_known =
      std::find(kDevices.begin(), kDevices.end(), request.device()) != kDevices.end();
  if (!request.device().empty() && !device_known) {
    return absl::InvalidArgumentError(absl::StrCat("the node's device is '",
                                                   AsUtf8(request.device()),
                                                   "'; allowed: ", absl::StrJoin(kDevices, ", ")));
  }
  for (const auto& node : view.nodes) {
    if (IsLoopback(node->address()) == IsLoopback(request.address())) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("the node's address is ", request.address(), ", and that of node ",
                     node->name(), " is ", node->address(),
                     ": MPI cannot connect loopback with other networks; give each node its "
                     "address on the common network"));
  }
  return absl::OkStatus();
}

}  // namespace

template <typename Request, typename Fill>
Reactor* OperatorService::Enqueue(Context* context, const Request& request, Fill fill) {
  absl::StatusOr<JobId> job = backend_.board->Current()->Resolve(request.job_id());
  if (!job.ok()) return FinishWith(context, job.status());
  Request resolved = request;
  resolved.set_job_id(job->text());
  return Hand(*backend_.inbox, context, std::move(resolved), fill);
}

std::vector<std::string> OperatorService::WritableFolders() const {
  std::vector<std::string> folders = {backend_.state_dir};
  folders.insert(folders.end(), backend_.writable_folders.begin(), backend_.writable_folders.end());
  return folders;
}

Reactor* OperatorService::Submit(Context* context, const v1::SubmitRequest* request,
                                 v1::SubmitResponse* response) {
  v1::SubmitRequest complete = *request;
  FillJobDefaults(*complete.mutable_spec());
  absl::Status valid = ValidateJobSpec(complete.spec());
  if (valid.ok()) valid = CheckWritableFolders(complete.spec(), WritableFolders());
  if (valid.ok()) {
    valid = CheckDataFolder(complete.spec(), NodesHere(*backend_.board->Current()));
  }
  if (!valid.ok()) return FinishWith(context, valid);
  return Hand(*backend_.inbox, context, std::move(complete),
              [response](const Answer& answer) { response->set_job_id(answer.job_id); });
}

Reactor* OperatorService::Pause(Context* context, const v1::PauseRequest* request,
                                v1::PauseResponse* response) {
  return Enqueue(context, *request, Explain(response));
}

Reactor* OperatorService::Resume(Context* context, const v1::ResumeRequest* request,
                                 v1::ResumeResponse* response) {
  return Enqueue(context, *request, Explain(response));
}

Reactor* OperatorService::Cancel(Context* context, const v1::CancelRequest* request,
                                 v1::CancelResponse* response) {
  return Enqueue(context, *request, Explain(response));
}

Reactor* OperatorService::Checkpoint(Context* context, const v1::CheckpointRequest* request,
                                     v1::CheckpointResponse*) {
  return Enqueue(context, *request, [](const Answer&) {});
}

Reactor* OperatorService::AddNode(Context* context, const v1::AddNodeRequest* request,
                                  v1::AddNodeResponse* response) {
  const absl::Status valid = CheckNewNode(*request, *backend_.board->Current());
  if (!valid.ok()) return FinishWith(context, valid);
  const absl::StatusOr<Enrolment::Place> place = backend_.enrolment->Describe();
  if (!place.ok()) return FinishWith(context, place.status());
  const std::string token = RandomHex(kTokenBytes);
  NodeInvited invited{.token_sha256 = Sha256Hex(token)};
  if (!request->profile().empty()) {
    absl::StatusOr<v1::NodeSpec> profile = LoadShippedProfile(request->profile());
    if (!profile.ok()) return FinishWith(context, profile.status());
    invited.spec = *std::move(profile);
    invited.spec.set_profile(request->profile());
  }
  invited.spec.set_name(request->node());
  invited.spec.set_address(request->address());
  if (!request->device().empty()) invited.spec.set_device(request->device());
  MergePolicy(request->policy(), invited.spec);
  FillNodeDefaults(invited.spec);
  Problems problems;
  CheckRules(invited.spec, request->node(), problems);
  CheckNodeRules(invited.spec, request->node(), "", problems);
  if (!problems.empty()) return FinishWith(context, problems.ToStatus());
  return Hand(*backend_.inbox, context, std::move(invited),
              [response, token, place = *place](const Answer&) {
                response->set_token(token);
                response->set_lifetime_seconds(absl::ToDoubleSeconds(kInvitationLife));
                response->set_ca_sha256(place.ca_sha256);
                response->set_coordinator(place.coordinator);
              });
}

Reactor* OperatorService::ForgetNode(Context* context, const v1::ForgetNodeRequest* request,
                                     v1::ForgetNodeResponse*) {
  return Hand(*backend_.inbox, context,
              NodeForgotten{.node = NodeName(request->node()), .revoke = request->revoke()},
              [](const Answer&) {});
}

Reactor* OperatorService::DrainNode(Context* context, const v1::DrainNodeRequest* request,
                                    v1::DrainNodeResponse* response) {
  NodeDrained drained{.node = NodeName(request->node()), .reason = AsUtf8(request->reason())};
  return Hand(*backend_.inbox, context, std::move(drained),
              [response](const Answer& answer) { response->set_explanation(answer.explanation); });
}

Reactor* OperatorService::AllowNode(Context* context, const v1::AllowNodeRequest* request,
                                    v1::AllowNodeResponse* response) {
  return Hand(*backend_.inbox, context, NodeAllowed{.node = NodeName(request->node())},
              [response](const Answer& answer) { response->set_explanation(answer.explanation); });
}

Reactor* OperatorService::SetNode(Context* context, const v1::SetNodeRequest* request,
                                  v1::SetNodeResponse* response) {
  NodeSet set{.node = NodeName(request->node()),
              .clear_hours = request->clear_hours(),
              .clear_quiet_hours = request->clear_quiet_hours()};
  MergePolicy(request->policy(), set.policy);
  if (set.policy.ByteSizeLong() == 0 && !set.clear_hours && !set.clear_quiet_hours) {
    return FinishWith(context, absl::InvalidArgumentError(
                                   "nothing is to be set; say what, such as --on-battery slow"));
  }
  Problems problems;
  v1::NodeSpec whole = set.policy;
  whole.set_name("node");
  whole.set_address("127.0.0.1");
  FillNodeDefaults(whole);
  CheckRules(whole, request->node(), problems);
  CheckNodeRules(whole, request->node(), "", problems);
  if (!problems.empty()) return FinishWith(context, problems.ToStatus());
  return Hand(*backend_.inbox, context, std::move(set),
              [response](const Answer& answer) { response->set_explanation(answer.explanation); });
}

Reactor* OperatorService::ListJobs(Context* context, const v1::ListJobsRequest*,
                                   v1::ListJobsResponse* response) {
  const absl::Duration now = backend_.pump->now();
  const std::shared_ptr<const View> view = backend_.board->Current();
  for (const auto& [id, job] : view->jobs) *response->add_jobs() = job->StatusAt(now);
  std::stable_sort(response->mutable_jobs()->begin(), response->mutable_jobs()->end(),
                   [](const v1::JobStatus& a, const v1::JobStatus& b) {
                     return a.submitted_ms() < b.submitted_ms();
                   });
  return FinishWith(context, absl::OkStatus());
}

Reactor* OperatorService::GetJob(Context* context, const v1::GetJobRequest* request,
                                 v1::GetJobResponse* response) {
  const std::shared_ptr<const View> view = backend_.board->Current();
  absl::StatusOr<JobId> id = view->Resolve(request->job_id());
  if (!id.ok()) return FinishWith(context, id.status());
  const JobView& job = *view->jobs.at(*id);
  *response->mutable_status() = job.StatusAt(backend_.pump->now());
  *response->mutable_spec() = *job.spec;
  return FinishWith(context, absl::OkStatus());
}

Reactor* OperatorService::ListNodes(Context* context, const v1::ListNodesRequest*,
                                    v1::ListNodesResponse* response) {
  const std::shared_ptr<const View> view = backend_.board->Current();
  for (const auto& node : view->nodes) *response->add_nodes() = *node;
  *response->mutable_coordinator() = view->versions;
  return FinishWith(context, absl::OkStatus());
}

Reactor* OperatorService::ListEvents(Context* context, const v1::ListEventsRequest* request,
                                     v1::ListEventsResponse* response) {
  absl::StatusOr<JobId> id = backend_.board->Current()->Resolve(request->job_id());
  if (!id.ok()) return FinishWith(context, id.status());
  absl::StatusOr<std::vector<EventRow>> rows =
      backend_.journal->Events({.job = *id, .after = request->after()});
  if (!rows.ok()) return FinishWith(context, rows.status());
  for (const EventRow& row : *rows) {
    v1::JobEvent& event = *response->add_events();
    event.set_number(row.number);
    event.set_time_ms(row.time_ms);
    event.set_state(static_cast<v1::JobState>(row.state));
    event.set_text(row.text);
  }
  return FinishWith(context, absl::OkStatus());
}

grpc::ServerWriteReactor<v1::WatchResponse>* OperatorService::Watch(
    Context*, const v1::WatchRequest* request) {
  absl::StatusOr<JobId> id = backend_.board->Current()->Resolve(request->job_id());
  if (!id.ok()) return PumpedWriter<v1::WatchResponse>::Refuse(id.status());
  return PumpedWriter<v1::WatchResponse>::Open(*backend_.pump,
                                               MakeWatchSource(*backend_.board, *id));
}

grpc::ServerWriteReactor<v1::LogsResponse>* OperatorService::Logs(Context*,
                                                                  const v1::LogsRequest* request) {
  const std::shared_ptr<const View> view = backend_.board->Current();
  absl::StatusOr<JobId> id = view->Resolve(request->job_id());
  if (!id.ok()) return PumpedWriter<v1::LogsResponse>::Refuse(id.status());
  LogsOptions options;
  options.folder = absl::StrCat(backend_.state_dir, "/jobs/", id->text(), "/logs");
  if (request->has_rank()) options.selection.rank = Rank(request->rank());
  if (request->has_generation()) options.selection.generation = Generation(request->generation());
  options.from = {Generation(request->after().generation()), request->after().offset()};
  options.stop = request->follow() ? LogsOptions::At::kEndOfJob : LogsOptions::At::kEndOfFile;
  const absl::Status there = CheckLogs(*view->jobs.at(*id), options);
  if (!there.ok()) return PumpedWriter<v1::LogsResponse>::Refuse(there);
  return PumpedWriter<v1::LogsResponse>::Open(
      *backend_.pump, MakeLogsSource(*backend_.board, *id, std::move(options)));
}

}  // namespace espalier
