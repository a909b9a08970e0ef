// Invariant 9, closed by default: the Unix socket answers its owner and root, and tells others why
// it does not.
#include "common/rpc/local_listener.h"

#include <gmock/gmock.h>
#include <grpcpp/create_channel_posix.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/rpc/call.h"
#include "common/rpc/channel.h"
#include "common/rpc/local_access.h"
#include "tests/common/rpc/tls_world.h"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uid_t kNobody = 65534;

class AnsweringService : public v1::OperatorService::Service {
 public:
  grpc::Status ListJobs(grpc::ServerContext*, const v1::ListJobsRequest*,
                        v1::ListJobsResponse*) override {
    return grpc::Status::OK;
  }
};

sockaddr_un AddressOf(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  return address;
}

void SendDescriptor(int channel, int fd) {
  char byte = 0;
  iovec data = {.iov_base = &byte, .iov_len = 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof fd)] = {};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof fd);
  std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  (void)!sendmsg(channel, &message, 0);
}

int ReceiveDescriptor(int channel) {
  char byte = 0;
  iovec data = {.iov_base = &byte, .iov_len = 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  int fd = -1;
  if (recvmsg(channel, &message, 0) != 1 || CMSG_FIRSTHDR(&message) == nullptr) return -1;
  std::memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
  return fd;
}

// Runs in a process of its own, as nobody when this one is root.
template <typename Work>
void AsStranger(const Work& work) {
  const pid_t pid = fork();
  if (pid == 0) {
    const bool ready = geteuid() != 0 || (setgid(kNobody) == 0 && setuid(kNobody) == 0);
    if (ready) work();
    _exit(0);
  }
  waitpid(pid, nullptr, 0);
}

class Local : public ::testing::Test {
 protected:
  Local() {
    std::string pattern = std::filesystem::temp_directory_path() / "espalier XXXXXX";
    folder_ = mkdtemp(pattern.data());
    path_ = folder_ + "/a % socket";
    grpc::ServerBuilder builder;
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
  }
  ~Local() override {
    listener_.reset();
    server_->Shutdown();
    std::filesystem::remove_all(folder_);
  }

  absl::Status Open(uid_t owner = geteuid()) {
    absl::StatusOr<std::unique_ptr<LocalListener>> listener =
        LocalListener::Open({.path = path_,
                             .server = server_.get(),
                             .owner = owner,
                             .refused = [this](absl::string_view why) {
                               const std::lock_guard lock(mutex_);
                               refused_.emplace_back(why);
                             }});
    if (listener.ok()) listener_ = *std::move(listener);
    return listener.status();
  }
  // A socket that another user's program connected, as far as a test can play that: one that is not
  // root takes the listener's owner for another.
  void OpenForStrangers() {
    ASSERT_TRUE(Open(geteuid() == 0 ? 0 : geteuid() + 1).ok());
    ASSERT_EQ(chmod(folder_.c_str(), 0755), 0);
    ASSERT_EQ(chmod(path_.c_str(), 0666), 0);
  }
  uid_t stranger() const { return geteuid() == 0 ? kNobody : geteuid(); }
  ChannelTarget target() const { return {.address = "unix:" + path_}; }
  std::vector<std::string> refused() {
    const std::lock_guard lock(mutex_);
    return refused_;
  }

  std::string folder_;
  std::string path_;
  AnsweringService service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<LocalListener> listener_;
  std::mutex mutex_;
  std::vector<std::string> refused_;
};

TEST_F(Local, InvariantClosedByDefault_TheOwnerIsAnsweredWithoutMore) {
  ASSERT_TRUE(Open().ok());
  EXPECT_EQ(ListJobs(target()), absl::OkStatus());
  EXPECT_EQ(ListJobs(target()), absl::OkStatus()) << "a second connection";
  EXPECT_THAT(refused(), IsEmpty());
  struct stat entry;
  ASSERT_EQ(stat(path_.c_str(), &entry), 0);
  EXPECT_EQ(entry.st_mode & 0777, 0600u);
}

TEST_F(Local, InvariantClosedByDefault_AnotherUserIsRefusedWithTheReason) {
  OpenForStrangers();
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  AsStranger([&] {
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    const sockaddr_un address = AddressOf(path_);
    const auto* to = reinterpret_cast<const sockaddr*>(&address);
    if (connect(fd, to, sizeof address) == 0) SendDescriptor(ends[1], fd);
  });
  close(ends[1]);
  const int fd = ReceiveDescriptor(ends[0]);
  close(ends[0]);
  ASSERT_GE(fd, 0);
  // What other users' programs would see: this process only carries their connection.
  const auto stub = v1::OperatorService::NewStub(grpc::CreateInsecureChannelFromFd("peer", fd));
  grpc::ClientContext context;
  SetDeadline(context, absl::Seconds(20));
  v1::ListJobsResponse response;
  const absl::Status status = FromGrpc(stub->ListJobs(&context, {}, &response));
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("only the user who runs espalierd"), HasSubstr("TLS")));
  EXPECT_THAT(refused(), ElementsAre(absl::StrCat("it came from uid ", stranger())));
}

TEST_F(Local, WhoMayNotEvenConnectIsToldToo) {
  ASSERT_TRUE(Open().ok());
  ASSERT_EQ(chmod(path_.c_str(), geteuid() == 0 ? 0600 : 0), 0);
  ASSERT_EQ(chmod(folder_.c_str(), 0755), 0);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  AsStranger([&] {
    const absl::Status found = DiagnoseConnection(target(), RealClock(), absl::Seconds(5));
    const std::string text = found.ToString();
    (void)!write(ends[1], text.data(), text.size());
  });
  char text[1024] = {};
  EXPECT_GT(read(ends[0], text, sizeof text - 1), 0);
  close(ends[0]);
  close(ends[1]);
  EXPECT_THAT(text, AllOf(HasSubstr("PERMISSION_DENIED"), HasSubstr("only the user who runs"),
                          HasSubstr(absl::StrCat("uid ", stranger()))));
}

TEST_F(Local, TheSocketOfADeadProcessIsReplaced) {
  const int dead = socket(AF_UNIX, SOCK_STREAM, 0);
  const sockaddr_un address = AddressOf(path_);
  ASSERT_EQ(bind(dead, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  close(dead);
  const absl::Status before = ListJobs(target());
  EXPECT_EQ(before.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(before.message()), AllOf(HasSubstr(folder_), HasSubstr("has ended")));
  ASSERT_TRUE(Open().ok());
  EXPECT_EQ(ListJobs(target()), absl::OkStatus());
}

TEST_F(Local, WhatIsNoSocketIsLeftAlone) {
  std::ofstream(path_) << "a person's";
  const absl::Status status = Open();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(path_), HasSubstr("no socket")));
  EXPECT_TRUE(std::filesystem::is_regular_file(path_));
}

TEST_F(Local, WhereNoneListensTheFolderIsNamed) {
  const absl::Status status = ListJobs(target());
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("no espalierd runs"), HasSubstr(folder_)));
}

TEST_F(Local, AListenerThatEndsTakesTheNameWithIt) {
  ASSERT_TRUE(Open().ok());
  listener_.reset();
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(Local, CertificatesAreNotForASocket) {
  const auto channel = MakeChannel({.address = "unix:/s", .tls = TlsFiles{}}, RealClock());
  EXPECT_EQ(channel.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(channel.status().message()), HasSubstr("/s"));
}

}  // namespace
}  // namespace espalier
