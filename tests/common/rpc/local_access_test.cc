// How a coordinator of this machine is found, and the token in its state folder.
#include "common/rpc/local_access.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "common/base/file_system.h"
#include "common/rpc/channel.h"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class LocalAccess : public ::testing::Test {
 protected:
  LocalAccess() {
    std::string pattern = std::filesystem::temp_directory_path() / "espalier-XXXXXX";
    folder_ = mkdtemp(pattern.data());
    if (const char* home = std::getenv("HOME")) home_ = home;
    setenv("HOME", folder_.c_str(), 1);
  }
  ~LocalAccess() override {
    setenv("HOME", home_.c_str(), 1);
    std::filesystem::remove_all(folder_);
  }

  // The default state folder, whose espalierd said that it listens there.
  std::string DefaultState(const std::string& address) {
    const std::string state = ExpandHome(kDefaultStateDir).value();
    std::filesystem::create_directories(state);
    std::ofstream(state + "/address") << "socket=x\ngrpc=" << address << "\nmetrics=y\n";
    return state;
  }

  std::string folder_;
  std::string home_;
};

TEST_F(LocalAccess, ACoordinatorIsAnAddressOrAStateFolder) {
  EXPECT_EQ(CoordinatorAddress("studio:7070").value(), "studio:7070");
  EXPECT_EQ(CoordinatorAddress("[::1]:7070").value(), "[::1]:7070");
  EXPECT_EQ(CoordinatorAddress("unix:/a/b").value(), "unix:/a/b");
  EXPECT_EQ(CoordinatorAddress("/a/../state/").value(), "unix:/state/espalierd.sock");
  EXPECT_EQ(CoordinatorAddress("~/s").value(), "unix:" + folder_ + "/s/espalierd.sock");
  const std::string here = std::filesystem::current_path().lexically_normal().string();
  EXPECT_EQ(CoordinatorAddress("./s").value(), "unix:" + here + "/s/espalierd.sock");
  const absl::Status bare = CoordinatorAddress("studio").status();
  EXPECT_EQ(bare.code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(LocalAccess, APathThatSystemsWouldNotTakeIsRefusedWithAWayOut) {
  const std::string longest = "/" + std::string(103 - 1 - 15, 'a');
  EXPECT_EQ(SocketPath(longest).value().size(), 103u);
  const absl::Status status = SocketPath(longest + "a").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("104 bytes; allowed: 103"),
                                                   HasSubstr("ln -s"), HasSubstr("--state-dir")));
}

TEST_F(LocalAccess, TheTokenIsMadeOnceForTheOwnerOnly) {
  const std::string token = TakeToken(folder_).value();
  EXPECT_EQ(token.size(), 64u);
  EXPECT_EQ(TakeToken(folder_).value(), token);
  struct stat entry;
  ASSERT_EQ(stat((folder_ + "/token").c_str(), &entry), 0);
  EXPECT_EQ(entry.st_mode & 0777, 0600u);
  std::filesystem::remove(folder_ + "/token");
  EXPECT_NE(TakeToken(folder_).value(), token);
}

TEST_F(LocalAccess, ADamagedTokenIsNotTakenForOne) {
  std::ofstream(folder_ + "/token") << "12345\n";
  EXPECT_THAT(TakeToken(folder_).status().ToString(),
              AllOf(HasSubstr(folder_ + "/token"), HasSubstr("remove it")));
}

TEST_F(LocalAccess, TheDefaultFoldersTokenGoesToItsOwnCoordinatorOnly) {
  const std::string token = TakeToken(DefaultState("127.0.0.1:7070")).value();
  EXPECT_EQ(FindToken("127.0.0.1:7070", "").value(), token);
  EXPECT_EQ(FindToken("127.0.0.1:7071", "").value(), "") << "another program's, perhaps";
}

TEST_F(LocalAccess, WhatListensHereIsReachedByItsSocketOnceThatAnswers) {
  const std::string state = DefaultState("10.77.0.1:7070");
  const ChannelTarget target{.address = "10.77.0.1:7070", .tls = TlsFiles{}};
  EXPECT_EQ(ByOwnSocket(target).address, "10.77.0.1:7070") << "nothing answers";
  const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{.sun_family = AF_UNIX};
  const std::string path = SocketPath(state).value();
  ASSERT_LT(path.size(), sizeof address.sun_path);
  path.copy(address.sun_path, path.size());
  ASSERT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(listen(fd, 4), 0);
  EXPECT_EQ(ByOwnSocket(target).address, "unix:" + path);
  EXPECT_FALSE(ByOwnSocket(target).tls.has_value()) << "a socket takes no certificates";
  EXPECT_EQ(ByOwnSocket({.address = "10.77.0.2:7070"}).address, "10.77.0.2:7070")
      << "another machine's";
  EXPECT_EQ(ByOwnSocket({.address = "unix:/a/b"}).address, "unix:/a/b");
  close(fd);
}

TEST_F(LocalAccess, ATokenThatWasNamedIsGivenOnLoopbackOnly) {
  const std::string token = TakeToken(folder_).value();
  const std::string file = folder_ + "/token";
  EXPECT_EQ(FindToken("127.0.0.1:9", file).value(), token);
  EXPECT_EQ(FindToken("10.0.0.1:9", file).value(), "");
  EXPECT_EQ(FindToken("unix:/a/b", file).value(), "");
  const absl::Status absent = FindToken("127.0.0.1:9", folder_ + "/no").status();
  EXPECT_EQ(absent.code(), absl::StatusCode::kUnauthenticated);
}

}  // namespace
}  // namespace espalier
