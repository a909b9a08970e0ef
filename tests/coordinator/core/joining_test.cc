// Machines that join while espalierd runs, and nodes that are forgotten.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "coordinator/core/advance.h"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const NodeName kName("macbook");
const absl::Time kStart = absl::FromUnixSeconds(1'000'000'000);

class Joining : public ::testing::Test {
 protected:
  Joining() { Restart(); }

  // The next coordinator, with what the journal holds.
  void Restart() {
    CoordinatorStarted start;
    start.nodes = {NodeName("studio")};
    for (const auto& [name, record] : journal_) start.records.push_back(record);
    state_ = ClusterState{};
    Take(start);
  }
  void Take(const Event& event) {
    closed_.clear();
    for (const Effect& effect : Advance(state_, event, now_)) {
      if (const auto* node = std::get_if<PersistNode>(&effect)) {
        journal_[node->record.name] = node->record;
      } else if (const auto* reply = std::get_if<Reply>(&effect)) {
        reply_ = reply->status;
      } else if (const auto* close = std::get_if<CloseStream>(&effect)) {
        closed_.push_back(close->stream.value());
      }
    }
  }

  absl::Status Invite(const NodeName& name, const std::string& token) {
    NodeInvited invited{.token_sha256 = token};
    invited.spec.set_name(name.text());
    invited.spec.set_address("10.77.0.2");
    Take(invited);
    return reply_;
  }
  absl::Status JoinAs(const NodeName& name, const std::string& token, const std::string& serial) {
    NodeJoined joined{
        .node = name, .token_sha256 = token, .certificate = "print of " + serial, .serial = serial};
    joined.files.set_ca("/identity/ca.crt");
    Take(joined);
    return reply_;
  }
  absl::Status Forget(const NodeName& name, bool revoke = false) {
    Take(NodeForgotten{.node = name, .revoke = revoke});
    return reply_;
  }
  void Attach(const NodeName& name, int64_t stream, const std::string& serial) {
    Take(AgentAttached{.stream = StreamId(stream),
                       .node = name,
                       .certificate = serial.empty() ? "" : "print of " + serial,
                       .serial = serial});
  }
  const Node* Find(const NodeName& name) { return state_.nodes.Find(name); }

  ClusterState state_;
  std::map<NodeName, NodeRecord> journal_;
  absl::Time now_ = kStart;
  absl::Status reply_;
  std::vector<int64_t> closed_;
};

TEST_F(Joining, AnInvitedMachineBecomesANodeAndStaysOneAcrossARestart) {
  ASSERT_EQ(Invite(kName, "hash"), absl::OkStatus());
  EXPECT_EQ(Find(kName), nullptr) << "nobody has joined yet";
  Restart();
  ASSERT_EQ(JoinAs(kName, "hash", "5e"), absl::OkStatus());
  for (int life = 0; life < 2; ++life) {
    ASSERT_NE(Find(kName), nullptr);
    EXPECT_EQ(Find(kName)->agent.state, AgentState::kGone) << "used through its agent alone";
    EXPECT_EQ(Find(kName)->record.joined->address(), "10.77.0.2");
    EXPECT_EQ(Find(kName)->record.joined->tls().ca(), "/identity/ca.crt");
    EXPECT_EQ(Find(kName)->record.certificate, "print of 5e");
    Restart();
  }
}

// By it jobs give ranks, and with them shares.
TEST_F(Joining, TheOrderOfThoseThatJoinedOutlivesARestart) {
  for (const char* name : {"mini", "air", "macbook"}) {
    ASSERT_TRUE(Invite(NodeName(name), "hash").ok());
    ASSERT_TRUE(JoinAs(NodeName(name), "hash", "5e").ok());
  }
  for (int life = 0; life < 2; ++life) {
    EXPECT_EQ(NamesOfNodes(state_.nodes), "studio, mini, air, macbook");
    Restart();
  }
  ASSERT_TRUE(Forget(NodeName("mini")).ok());
  ASSERT_TRUE(Invite(NodeName("mini"), "hash").ok());
  ASSERT_TRUE(JoinAs(NodeName("mini"), "hash", "6f").ok());
  Restart();
  EXPECT_EQ(NamesOfNodes(state_.nodes), "studio, air, macbook, mini");
}

TEST_F(Joining, ATokenOfAnotherNameOrAnOlderOneIsRefused) {
  EXPECT_TRUE(Invite(kName, "older").ok());
  EXPECT_TRUE(Invite(kName, "newer").ok());
  EXPECT_TRUE(Invite(NodeName("mini"), "mini's").ok());
  for (const char* token : {"older", "mini's", ""}) {
    EXPECT_EQ(JoinAs(kName, token, "5e").code(), absl::StatusCode::kPermissionDenied) << token;
  }
  EXPECT_THAT(std::string(reply_.message()), HasSubstr("espalier nodes add macbook"));
  EXPECT_EQ(JoinAs(NodeName("phone"), "newer", "5e").code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(Find(kName), nullptr);
}

TEST_F(Joining, ATokenLivesTenMinutes) {
  EXPECT_TRUE(Invite(kName, "hash").ok());
  now_ += absl::Minutes(10);
  Restart();
  EXPECT_EQ(JoinAs(kName, "hash", "5e").code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(reply_.message()), AllOf(HasSubstr("expired"), HasSubstr("10m")));
}

TEST_F(Joining, ATokenIsGoodOnceEvenAcrossARestart) {
  EXPECT_TRUE(Invite(kName, "hash").ok());
  EXPECT_EQ(JoinAs(kName, "hash", "5e"), absl::OkStatus());
  Restart();
  EXPECT_EQ(JoinAs(kName, "hash", "6f").code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(reply_.message()),
              AllOf(HasSubstr("was used on"), HasSubstr("espalier nodes forget macbook")));
  EXPECT_THAT(Find(kName)->record.serials, ElementsAre("5e"));
}

TEST_F(Joining, ANameThatIsTakenIsNotGivenAgain) {
  EXPECT_EQ(Invite(NodeName("studio"), "hash").code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(reply_.message()), HasSubstr("cluster file"));
  EXPECT_TRUE(Invite(kName, "hash").ok());
  EXPECT_EQ(JoinAs(kName, "hash", "5e"), absl::OkStatus());
  EXPECT_EQ(Invite(kName, "again").code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(reply_.message()), HasSubstr("espalier nodes forget macbook"));
}

TEST_F(Joining, ANameThatTheClusterFileGotMeanwhileIsTaken) {
  EXPECT_TRUE(Invite(NodeName("mini"), "hash").ok());
  CoordinatorStarted start;
  start.nodes = {NodeName("mini")};
  start.records = {journal_[NodeName("mini")]};
  state_ = ClusterState{};
  Take(start);
  EXPECT_EQ(JoinAs(NodeName("mini"), "hash", "5e").code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(Joining, AForgottenMachineIsNoNodeAndItsCertificateIsRefusedForEver) {
  EXPECT_TRUE(Invite(kName, "hash").ok());
  EXPECT_EQ(JoinAs(kName, "hash", "5e"), absl::OkStatus());
  Attach(kName, 1, "5e");
  ASSERT_EQ(Forget(kName), absl::OkStatus());
  EXPECT_THAT(closed_, ElementsAre(1));
  for (int life = 0; life < 2; ++life) {
    EXPECT_EQ(Find(kName), nullptr);
    EXPECT_THAT(state_.revoked, ElementsAre("5e"));
    Restart();
  }
  EXPECT_EQ(Forget(kName).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(JoinAs(kName, "hash", "5e").code(), absl::StatusCode::kPermissionDenied);
  ASSERT_EQ(Invite(kName, "again"), absl::OkStatus());
  ASSERT_EQ(JoinAs(kName, "again", "6f"), absl::OkStatus());
  Attach(kName, 2, "5e");
  EXPECT_THAT(closed_, ElementsAre(2)) << "the old machine";
  Attach(kName, 3, "6f");
  EXPECT_THAT(closed_, IsEmpty());
}

TEST_F(Joining, AnInvitationCanBeTakenBack) {
  EXPECT_TRUE(Invite(kName, "hash").ok());
  EXPECT_EQ(Forget(kName), absl::OkStatus());
  Restart();
  EXPECT_EQ(JoinAs(kName, "hash", "5e").code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(Joining, ANodeOfTheClusterFileGoesBackToTheRemoteShell) {
  const NodeName studio("studio");
  Attach(studio, 1, "5e");
  EXPECT_EQ(Forget(studio).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(reply_.message()), HasSubstr("stop espalier-agent there first"));
  Take(AgentDetached{StreamId(1)});
  ASSERT_EQ(Find(studio)->agent.state, AgentState::kGone);
  ASSERT_EQ(Forget(studio), absl::OkStatus());
  for (int life = 0; life < 2; ++life) {
    EXPECT_EQ(Find(studio)->agent.state, AgentState::kNone);
    EXPECT_THAT(state_.revoked, IsEmpty()) << "its workers need the certificate";
    Restart();
  }
  Attach(studio, 2, "5e");
  EXPECT_EQ(Find(studio)->agent.state, AgentState::kAttached) << "an agent may come again";
}

TEST_F(Joining, ANodeOfTheClusterFileLosesItsCertificateOnlyWhenAskedTo) {
  const NodeName studio("studio");
  EXPECT_EQ(Forget(studio, true).code(), absl::StatusCode::kFailedPrecondition) << "none is known";
  Attach(studio, 1, "5e");
  Attach(studio, 1, "6f");
  ASSERT_EQ(Forget(studio, true), absl::OkStatus());
  EXPECT_THAT(closed_, ElementsAre(1));
  EXPECT_THAT(state_.revoked, ElementsAre("5e", "6f")) << "the one before a renewal, too";
  Restart();
  EXPECT_THAT(state_.revoked, ElementsAre("5e", "6f"));
}

TEST_F(Joining, ANodeWithoutACertificateIsForgottenWhenItsAgentIsGone) {
  const NodeName studio("studio");
  Attach(studio, 1, "");
  EXPECT_EQ(Forget(studio).code(), absl::StatusCode::kFailedPrecondition);
  Take(AgentDetached{StreamId(1)});
  EXPECT_EQ(Forget(studio), absl::OkStatus());
  EXPECT_EQ(Find(studio)->agent.state, AgentState::kNone);
}

TEST_F(Joining, ANodeWhereAJobRunsIsNotForgotten) {
  EXPECT_TRUE(Invite(kName, "hash").ok());
  EXPECT_EQ(JoinAs(kName, "hash", "5e"), absl::OkStatus());
  state_.nodes.SetHeld(JobId("nano-1"), {kName});
  EXPECT_EQ(Forget(kName).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(reply_.message()), HasSubstr("nano-1"));
  EXPECT_NE(Find(kName), nullptr);
}

TEST_F(Joining, ThePolicyOfANodeThatHasJoinedIsChangedAndStaysSo) {
  ASSERT_EQ(Invite(kName, "hash"), absl::OkStatus());
  ASSERT_EQ(JoinAs(kName, "hash", "5e"), absl::OkStatus());
  NodeSet set{.node = kName};
  set.policy.set_on_battery("slow");
  set.policy.add_hours("01:00-01:30");  // it is 01:46
  Take(set);
  EXPECT_EQ(reply_, absl::OkStatus());
  Attach(kName, 1, "5e");
  EXPECT_EQ(Find(kName)->agent.health.ailment(), Ailment::kHours);
  Restart();
  EXPECT_EQ(Find(kName)->spec.on_battery(), "slow");
  EXPECT_EQ(Find(kName)->spec.hours(0), "01:00-01:30");
  Attach(kName, 2, "5e");
  Take(NodeSet{.node = kName, .clear_hours = true});
  EXPECT_EQ(Find(kName)->agent.health.ailment(), Ailment::kNone) << "at once";
  EXPECT_EQ(Find(kName)->spec.address(), "10.77.0.2");
  EXPECT_TRUE(journal_[kName].joined->hours().empty());
}

TEST_F(Joining, ThePolicyOfOthersIsNotChangedHere) {
  Take(NodeSet{.node = NodeName("studio"), .clear_hours = true});
  EXPECT_THAT(reply_.message(), HasSubstr("the cluster file names node 'studio'"));
  Take(NodeSet{.node = kName, .clear_hours = true});
  EXPECT_THAT(reply_.message(), HasSubstr("there is no node 'macbook'; there are: studio"));
}

TEST_F(Joining, ANodeThatIsNotThereCannotBeForgotten) {
  EXPECT_EQ(Forget(NodeName("phone")).code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(reply_.message()), HasSubstr("studio"));
}

TEST_F(Joining, VersionsThatAreFoundLaterCountFromThenOn) {
  AgentAttached hello{.stream = StreamId(1), .node = NodeName("studio")};
  hello.report.mutable_versions()->set_open_mpi("4.1.4");
  Take(hello);
  const int64_t before = Find(NodeName("studio"))->revision;
  VersionsFound found;
  found.versions.set_open_mpi("5.0.7");
  Take(found);
  EXPECT_EQ(state_.versions.open_mpi(), "5.0.7");
  EXPECT_GT(Find(NodeName("studio"))->revision, before) << "shown anew";
}

}  // namespace
}  // namespace espalier
