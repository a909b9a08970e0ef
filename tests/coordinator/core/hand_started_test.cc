// How many jobs mpiruns that people start may leave behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/config/job_file.h"
#include "coordinator/core/advance.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const absl::Time kNow = absl::FromUnixSeconds(1'000'000'000);
constexpr int kMost = 100;

v1::JobSpec Spec(const std::string& name) {
  v1::JobSpec spec;
  spec.set_name(name);
  spec.mutable_parallel()->set_min_nodes(1);
  spec.mutable_train()->set_global_batch(4);
  spec.mutable_launch()->set_mode(v1::LAUNCH_MODE_EXTERNAL);
  FillJobDefaults(spec);
  return spec;
}

// So many wait for an mpirun. With a request id: as operators submitted them.
ClusterState Waiting(int count, const std::string& request_id = "") {
  CoordinatorStarted start{.nodes = {NodeName("studio")}};
  for (int i = 1; i <= count; ++i) {
    JobRecord record;
    record.id = JobId(absl::StrCat("hand-", i));
    record.number = i;
    if (!request_id.empty()) record.request_id = absl::StrCat(request_id, i);
    record.spec = Spec(absl::StrCat("hand", i));
    start.jobs.push_back(record);
  }
  ClusterState state;
  Advance(state, start, kNow);
  return state;
}

// Why the first worker of a new mpirun is refused; empty: it is not.
std::string Refusal(ClusterState& state, const std::string& name) {
  WorkerAttached hello{.stream = StreamId(1),
                       .worker = {.rank = Rank(0)},
                       .world_size = 1,
                       .node = NodeName("studio"),
                       .pid = 7,
                       .external_spec = Spec(name),
                       .external_id = "mpirun-1"};
  for (const Effect& effect : Advance(state, hello, kNow)) {
    if (const auto* close = std::get_if<CloseStream>(&effect)) return close->status.ToString();
  }
  return "";
}

std::vector<StreamId> StreamsClosed(const std::vector<Effect>& effects) {
  std::vector<StreamId> streams;
  for (const Effect& effect : effects) {
    if (const auto* close = std::get_if<CloseStream>(&effect)) streams.push_back(close->stream);
  }
  return streams;
}

TEST(HandStarted, SoManyJobsMayWaitAndNoMoreAreMade) {
  ClusterState state = Waiting(kMost);
  const std::string refusal = Refusal(state, "another");
  EXPECT_TRUE(absl::StrContains(refusal, "FAILED_PRECONDITION")) << refusal;
  EXPECT_TRUE(absl::StrContains(refusal, "espalier cancel")) << refusal;
  EXPECT_EQ(state.jobs.size(), static_cast<size_t>(kMost));
}

TEST(HandStarted, OneThatWaitsIsTakenUpHoweverManyThereAre) {
  ClusterState state = Waiting(kMost);
  EXPECT_EQ(Refusal(state, "hand7"), "");
  EXPECT_EQ(state.jobs.at(JobId("hand-7")).record.state, JobState::kLaunching);
}

// A certificate of a node speaks for that node: after a restart of espalierd no process is known.
TEST(HandStarted, NoOtherNodeTakesARankByNamingTheJob) {
  ClusterState before = Waiting(1);
  EXPECT_EQ(Refusal(before, "hand1"), "");
  const JobRecord record = before.jobs.at(JobId("hand-1")).record;
  ClusterState state;
  Advance(state,
          CoordinatorStarted{.nodes = {NodeName("studio"), NodeName("macbook")}, .jobs = {record}},
          kNow);
  WorkerAttached hello{.stream = StreamId(2),
                       .worker = {record.id, record.generation, Rank(0)},
                       .world_size = 1,
                       .node = NodeName("macbook"),
                       .pid = 9};
  EXPECT_THAT(StreamsClosed(Advance(state, hello, kNow)), ElementsAre(StreamId(2)));
  EXPECT_EQ(state.jobs.at(record.id).record.nodes, record.nodes);
  hello.node = NodeName("studio");
  hello.stream = StreamId(3);
  EXPECT_THAT(StreamsClosed(Advance(state, hello, kNow)), IsEmpty());
}

// A Mac and a Linux read the same job file at places of their own.
TEST(HandStarted, RanksMayHaveWhatJudgesAtPlacesOfTheirOwn) {
  ClusterState state = Waiting(0);
  const auto hello = [](int rank, const std::string& home, int64_t steps) {
    v1::JobSpec spec = Spec("judged");
    spec.mutable_train()->set_steps(steps);
    v1::VerifierSpec& verifier = *spec.mutable_train()->mutable_verifier();
    verifier.set_folder(home + "/jobs");
    verifier.add_command(home + "/jobs/judge");
    spec.mutable_train()->mutable_lora()->set_from(home + "/adapter");
    return WorkerAttached{.stream = StreamId(1 + rank),
                          .worker = {.rank = Rank(rank)},
                          .world_size = 3,
                          .node = NodeName("studio"),
                          .pid = 7 + rank,
                          .external_spec = spec,
                          .external_id = "mpirun-1"};
  };
  EXPECT_THAT(StreamsClosed(Advance(state, hello(0, "/Users/a", 5), kNow)), IsEmpty());
  EXPECT_THAT(StreamsClosed(Advance(state, hello(1, "/home/a", 5), kNow)), IsEmpty());
  EXPECT_THAT(StreamsClosed(Advance(state, hello(2, "/home/a", 6), kNow)),
              ElementsAre(StreamId(3)));
}

TEST(HandStarted, JobsThatOperatorsSubmittedTakeNoRoom) {
  ClusterState state = Waiting(kMost, "request-");
  EXPECT_EQ(Refusal(state, "another"), "");
  EXPECT_EQ(state.jobs.size(), static_cast<size_t>(kMost + 1));
}

}  // namespace
}  // namespace espalier
