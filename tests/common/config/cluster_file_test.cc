#include "common/config/cluster_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

const std::string kProfiles = ESPALIER_SOURCE_DIR "/configs/nodes";

absl::StatusOr<v1::ClusterSpec> Load(const std::string& yaml) {
  return LoadClusterText(
      {.yaml = yaml, .origin = "c.yaml", .folder = "/etc/e", .profile_folders = {kProfiles}});
}

std::string ErrorOf(const std::string& yaml) {
  const auto spec = Load(yaml);
  return spec.ok() ? "no error" : std::string(spec.status().message());
}

TEST(ClusterFile, ANodeTakesFromItsProfileWhatItLeavesOut) {
  const auto spec = Load(
      "nodes:\n"
      "  - {name: a, address: 10.0.0.1, profile: macbook-m3-max, threads: 4}\n"
      "  - {name: b, address: 10.0.0.2}\n");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->nodes(0).name(), "a");
  EXPECT_EQ(spec->nodes(0).device(), "mps");
  EXPECT_EQ(spec->nodes(0).threads(), 4);
  EXPECT_EQ(spec->nodes(0).memory_limit_bytes(), int64_t{24} << 30);
  EXPECT_EQ(spec->nodes(1).device(), "auto");
  EXPECT_EQ(spec->nodes(1).relative_speed(), 1);
}

TEST(ClusterFile, JobsLeaveAMachineThatIsUnwellUnlessItsNodeSaysOtherwise) {
  const auto spec = Load(
      "nodes:\n"
      "  - {name: a, address: 10.0.0.1}\n"
      "  - {name: b, address: 10.0.0.2, on_battery: leave, on_heat: ignore, hours: "
      "[22:00-07:00]}\n");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->nodes(0).on_battery(), "ignore");
  EXPECT_EQ(spec->nodes(0).least_battery_percent(), 20);
  EXPECT_EQ(spec->nodes(0).on_heat(), "leave");
  EXPECT_EQ(spec->nodes(0).least_disk_free_bytes(), 1'000'000'000);
  EXPECT_TRUE(spec->nodes(0).hours().empty());
  EXPECT_EQ(spec->nodes(1).on_battery(), "leave");
  EXPECT_EQ(spec->nodes(1).on_heat(), "ignore");
  EXPECT_THAT(spec->nodes(1).hours(), ::testing::ElementsAre("22:00-07:00"));
}

TEST(ClusterFile, ANodeComputesAllThatItCanUnlessItSaysOtherwise) {
  const auto spec = Load(
      "nodes:\n"
      "  - {name: a, address: 10.0.0.1}\n"
      "  - {name: b, address: 10.0.0.2, on_battery: slow, largest_share: 0.25, spared_share: 0.1,\n"
      "     quiet_hours: [22:00-07:00], yield_to_user: true}\n");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->nodes(0).largest_share(), 1);
  EXPECT_EQ(spec->nodes(0).spared_share(), 0.5);
  EXPECT_TRUE(spec->nodes(0).quiet_hours().empty());
  EXPECT_FALSE(spec->nodes(0).yield_to_user());
  EXPECT_EQ(spec->nodes(1).on_battery(), "slow");
  EXPECT_EQ(spec->nodes(1).largest_share(), 0.25);
  EXPECT_EQ(spec->nodes(1).spared_share(), 0.1);
  EXPECT_THAT(spec->nodes(1).quiet_hours(), ::testing::ElementsAre("22:00-07:00"));
  EXPECT_TRUE(spec->nodes(1).yield_to_user());
}

TEST(ClusterFile, DefaultsAreFilledInAndPathsResolved) {
  const auto spec = Load("tls: {ca: ca.crt, certificate: /c.crt, key: ~/k}\n");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_FALSE(spec->has_listen()) << "TCP only when asked for";
  EXPECT_EQ(spec->state_dir(), "~/.local/state/espalier");
  EXPECT_EQ(spec->launcher().mpirun(), "mpirun");
  EXPECT_EQ(spec->tls().ca(), "/etc/e/ca.crt");
  EXPECT_EQ(spec->tls().certificate(), "/c.crt");
  EXPECT_EQ(spec->tls().key(), "~/k");
  EXPECT_FALSE(Load("listen: 127.0.0.1:1")->has_tls());
  EXPECT_THAT(Load("writable_folders: [models, /srv]")->writable_folders(),
              ::testing::ElementsAre("/etc/e/models", "/srv"));
  EXPECT_TRUE(ValidateClusterSpec(*spec).ok()) << ValidateClusterSpec(*spec);
}

struct Case {
  const char* name;
  std::string yaml;
  std::string error;
};

class BadCluster : public ::testing::TestWithParam<Case> {};

TEST_P(BadCluster, IsRefusedWithTheReason) {
  EXPECT_THAT(ErrorOf(GetParam().yaml), HasSubstr(GetParam().error));
}

INSTANTIATE_TEST_SUITE_P(
    Rules, BadCluster,
    ::testing::Values(
        Case{"ClosedByDefault", "listen: 0.0.0.0:7070",
             "other machines can reach, and there is no"},
        Case{"OpenMetrics", "metrics_listen: 10.0.0.1:9464", "reach without an identity"},
        Case{"ListenName", "listen: studio:7070", "listen is 'studio:7070'; allowed: IP:PORT"},
        Case{"ListenNoPort", "listen: 127.0.0.1", "listen is '127.0.0.1'; allowed: IP:PORT"},
        Case{"ListenElsewhereOnLoopback", "listen: 127.3.2.1:7070",
             "allowed without a tls section: 127.0.0.1:PORT"},
        Case{"AdvertiseWithoutTls", "advertise: studio:7070", "those need TLS"},
        Case{"HostName", "nodes: [{name: a, address: studio.local}]",
             "nodes[0].address is 'studio.local'; allowed: an IP address"},
        Case{"SameName", "nodes: [{name: a, address: 10.0.0.1}, {name: a, address: 10.0.0.2}]",
             "two nodes are named 'a'"},
        Case{"BadName", "nodes: [{name: a/b, address: 10.0.0.1}]", "nodes[0].name is 'a/b'"},
        Case{"NoAddress", "nodes:\n  - name: a\n", "c.yaml:2: nodes[0].address is missing"},
        Case{"Mixed", "nodes: [{name: a, address: 10.0.0.1}, {name: b, address: 127.0.0.1}]",
             "some nodes have a loopback address"},
        Case{"NodeWithoutTls",
             "tls: {ca: a, certificate: b, key: c}\nnodes: [{name: a, address: 10.0.0.1}]",
             "nodes[0] ('a') has no tls section"},
        Case{"HalfTls", "tls: {ca: a}", "tls.certificate is missing"},
        Case{"NodesNotAList", "nodes: {name: a}", "nodes is a section; it must be a list"},
        Case{"UnknownProfile", "nodes:\n  - {name: a, address: 10.0.0.1, profile: linux-cup}",
             "c.yaml:2: nodes[0].profile: there is no profile 'linux-cup'"},
        Case{"NearProfile", "nodes: [{name: a, address: 10.0.0.1, profile: linux-cup}]",
             "did you mean 'linux-cpu'? Allowed: apple-m1, "},
        Case{"ProfileOutside", "nodes: [{name: a, address: 10.0.0.1, profile: ../jobs/17m}]",
             "there is no profile '../jobs/17m'"},
        Case{"Hours", "nodes: [{name: a, address: 10.0.0.1, hours: [22:00-07:00, 7-9]}]",
             "nodes[0].hours: '7-9' is no part of a day; allowed: HH:MM-HH:MM"},
        Case{"QuietHours", "nodes: [{name: a, address: 10.0.0.1, quiet_hours: [7-9]}]",
             "nodes[0].quiet_hours: '7-9' is no part of a day; allowed: HH:MM-HH:MM"},
        Case{"LargestShare", "nodes: [{name: a, address: 10.0.0.1, largest_share: 30}]",
             "nodes[0].largest_share is 30"},
        Case{"SparedShare", "nodes: [{name: a, address: 10.0.0.1, spared_share: 0}]",
             "nodes[0].spared_share is 0"},
        Case{"OnBattery", "nodes: [{name: a, address: 10.0.0.1, on_battery: stay}]",
             "nodes[0].on_battery is 'stay'"},
        Case{"UnknownKey", "nodes: [{name: a, address: 10.0.0.1, speed: 2}]",
             "unknown key 'nodes[0].speed'"}),
    [](const ::testing::TestParamInfo<Case>& info) { return std::string(info.param.name); });

// A folder with a clusters/ and a nodes/ beside it, as in configs/.
class ProfileFolderTest : public ::testing::Test {
 protected:
  ProfileFolderTest() {
    std::string name = ::testing::TempDir() + "espalier-profiles-XXXXXX";
    folder_ = mkdtemp(name.data());
    Write("clusters/c.yaml", "nodes: [{name: a, address: 10.0.0.1, profile: mine}]");
  }
  ~ProfileFolderTest() override { std::filesystem::remove_all(folder_); }

  void Write(const std::string& path, const std::string& text) const {
    const std::filesystem::path full = std::filesystem::path(folder_) / path;
    std::filesystem::create_directories(full.parent_path());
    std::ofstream(full) << text;
  }

  absl::StatusOr<v1::ClusterSpec> LoadIt() const {
    return LoadClusterFile(folder_ + "/clusters/c.yaml");
  }

  std::string folder_;
};

TEST_F(ProfileFolderTest, ProfilesLieBesideTheClusterFile) {
  EXPECT_FALSE(LoadIt().ok());
  Write("nodes/mine.yaml", "threads: 3");
  EXPECT_EQ(LoadIt()->nodes(0).threads(), 3);
  Write("clusters/nodes/mine.yaml", "threads: 5");
  EXPECT_EQ(LoadIt()->nodes(0).threads(), 5);
}

TEST_F(ProfileFolderTest, MistakesInAProfileNameItsFile) {
  Write("nodes/mine.yaml", "thread: 3\naddress: 10.0.0.9\n");
  const std::string error(LoadIt().status().message());
  EXPECT_THAT(error, HasSubstr("nodes/mine.yaml:1: unknown key 'thread'"));
  EXPECT_THAT(error, HasSubstr("address belongs to a node of a cluster file"));
}

TEST(Reference, ListsEveryKeyWithRangeUnitAndDefault) {
  const std::string text = ClusterFileReference();
  EXPECT_THAT(text, HasSubstr("nodes[].memory_limit_bytes"));
  EXPECT_THAT(text, HasSubstr("a whole number from 0 to 1e15 bytes"));
  EXPECT_THAT(text, HasSubstr("default 127.0.0.1:9464"));
  EXPECT_THAT(text, HasSubstr("required"));
}

}  // namespace
}  // namespace espalier
