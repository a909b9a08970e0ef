// The machine's sleep as logind announces it: by a bus of the test's own, and a logind that the
// test plays on it.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <systemd/sd-bus.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/platform/platform.h"

namespace espalier {
namespace {

constexpr char kPath[] = "/org/freedesktop/login1";
constexpr char kManager[] = "org.freedesktop.login1.Manager";
constexpr char kBusConfig[] = R"(<busconfig>
  <type>session</type><listen>unix:path=%s/bus</listen><auth>EXTERNAL</auth>
  <policy context="default">
    <allow user="*"/><allow own="*"/><allow send_type="method_call"/><allow send_type="signal"/>
    <allow send_requested_reply="true"/><allow receive_requested_reply="true"/>
  </policy>
</busconfig>)";

bool WaitUntil(const std::function<bool()>& condition) {
  for (int i = 0; i < 500 && !condition(); ++i) usleep(10'000);
  return condition();
}

// Gives out inhibitors as logind does: one end of a pipe, whose other end tells when it is closed.
class PlayedLogind {
 public:
  explicit PlayedLogind(const std::string& address) : thread_([this, address] { Run(address); }) {
    EXPECT_TRUE(WaitUntil([this] { return ready_.load(); }));
  }
  ~PlayedLogind() {
    stops_ = true;
    thread_.join();
    for (const int fd : pipes_) close(fd);
  }
  void Prepare(bool begins) { prepare_ = begins ? 1 : 0; }
  int asked() const { return asked_; }
  // The inhibitor given out last is closed.
  bool released() const { return released_; }
  std::string last() {
    const std::lock_guard lock(mutex_);
    return last_;
  }

 private:
  static int Inhibit(sd_bus_message* call, void* self, sd_bus_error*) {
    auto& logind = *static_cast<PlayedLogind*>(self);
    const char *what = nullptr, *who = nullptr, *why = nullptr, *how = nullptr;
    if (sd_bus_message_read(call, "ssss", &what, &who, &why, &how) < 0) return -EINVAL;
    int ends[2];
    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return -errno;
    logind.pipes_.push_back(ends[0]);
    {
      const std::lock_guard lock(logind.mutex_);
      logind.last_ = std::string(what) + " " + how;
    }
    logind.released_ = false;
    const int answered = sd_bus_reply_method_return(call, "h", ends[1]);
    close(ends[1]);
    ++logind.asked_;
    return answered;
  }
  void Run(const std::string& address) {
    static const sd_bus_vtable kMethods[] = {
        SD_BUS_VTABLE_START(0),
        SD_BUS_METHOD("Inhibit", "ssss", "h", &PlayedLogind::Inhibit, SD_BUS_VTABLE_UNPRIVILEGED),
        SD_BUS_VTABLE_END};
    sd_bus* bus = nullptr;
    ASSERT_GE(sd_bus_new(&bus), 0);
    ASSERT_GE(sd_bus_set_address(bus, address.c_str()), 0);
    ASSERT_GE(sd_bus_set_bus_client(bus, 1), 0);
    ASSERT_GE(sd_bus_start(bus), 0);
    ASSERT_GE(sd_bus_add_object_vtable(bus, nullptr, kPath, kManager, kMethods, this), 0);
    ASSERT_GE(sd_bus_request_name(bus, "org.freedesktop.login1", 0), 0);
    ready_ = true;
    while (!stops_) {
      while (sd_bus_process(bus, nullptr) > 0) {
      }
      if (const int begins = prepare_.exchange(-1); begins >= 0) {
        sd_bus_emit_signal(bus, kPath, kManager, "PrepareForSleep", "b", begins);
        sd_bus_flush(bus);
      }
      char byte = 0;
      if (!pipes_.empty() && read(pipes_.back(), &byte, 1) == 0) released_ = true;
      sd_bus_wait(bus, 10'000);
    }
    sd_bus_flush_close_unref(bus);
  }

  std::atomic<bool> ready_{false};
  std::atomic<bool> stops_{false};
  std::atomic<bool> released_{false};
  std::atomic<int> prepare_{-1};
  std::atomic<int> asked_{0};
  std::vector<int> pipes_;
  std::mutex mutex_;
  std::string last_;
  std::thread thread_;
};

class LogindSleep : public ::testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/espalier-bus-XXXXXX";
    ASSERT_NE(mkdtemp(folder), nullptr);
    folder_ = folder;
    address_ = "unix:path=" + folder_ + "/bus";
    setenv("DBUS_SYSTEM_BUS_ADDRESS", address_.c_str(), 1);
  }
  void StartBus() {
    std::vector<char> text(sizeof(kBusConfig) + folder_.size());
    snprintf(text.data(), text.size(), kBusConfig, folder_.c_str());
    std::ofstream(folder_ + "/bus.conf") << text.data();
    daemon_ = fork();
    if (daemon_ == 0) {
      execlp("dbus-daemon", "dbus-daemon", "--nofork", "--nopidfile",
             ("--config-file=" + folder_ + "/bus.conf").c_str(), nullptr);
      _exit(127);
    }
    const std::string socket = folder_ + "/bus";
    ASSERT_TRUE(WaitUntil([&] { return access(socket.c_str(), F_OK) == 0; }))
        << "dbus-daemon is needed: apt install dbus-daemon";
  }
  void EndBus() {
    if (daemon_ <= 0) return;
    kill(daemon_, SIGTERM);
    waitpid(daemon_, nullptr, 0);
    daemon_ = 0;
  }
  void TearDown() override {
    EndBus();
    unsetenv("DBUS_SYSTEM_BUS_ADDRESS");
    for (const char* name : {"/bus", "/bus.conf", ""}) remove((folder_ + name).c_str());
  }

  std::string folder_;
  std::string address_;
  pid_t daemon_ = 0;
};

TEST_F(LogindSleep, IsAnnouncedAndWaitsUntilItIsAllowed) {
  StartBus();
  PlayedLogind logind(address_);
  const std::unique_ptr<SleepNotice> notice = SleepNotice::Start();
  ASSERT_NE(notice, nullptr);
  EXPECT_TRUE(WaitUntil([&] { return logind.last() == "sleep delay"; }));
  EXPECT_FALSE(notice->about_to_sleep());
  for (int time = 1; time <= 2; ++time) {
    logind.Prepare(true);
    EXPECT_TRUE(WaitUntil([&] { return notice->about_to_sleep(); }));
    EXPECT_FALSE(logind.released());
    notice->Allow();
    EXPECT_TRUE(WaitUntil([&] { return logind.released(); }));
    logind.Prepare(false);
    EXPECT_TRUE(WaitUntil([&] { return !notice->about_to_sleep(); }));
    EXPECT_TRUE(WaitUntil([&] { return logind.asked() == time + 1; }))
        << "it waits for the next one";
    EXPECT_FALSE(logind.released());
  }
}

TEST_F(LogindSleep, ABusThatEndsSaysNothingMore) {
  StartBus();
  const auto logind = std::make_unique<PlayedLogind>(address_);
  const std::unique_ptr<SleepNotice> notice = SleepNotice::Start();
  ASSERT_NE(notice, nullptr);
  EXPECT_TRUE(WaitUntil([&] { return logind->asked() > 0; }));
  logind->Prepare(true);
  EXPECT_TRUE(WaitUntil([&] { return notice->about_to_sleep(); }));
  EndBus();
  EXPECT_TRUE(WaitUntil([&] { return !notice->about_to_sleep(); }));
  notice->Allow();
}

TEST_F(LogindSleep, ABusAndALogindThatComeLaterAreFound) {
  const std::unique_ptr<SleepNotice> notice = SleepNotice::Start();
  ASSERT_NE(notice, nullptr) << "an agent may be started before D-Bus";
  EXPECT_FALSE(notice->about_to_sleep());
  StartBus();
  usleep(600'000);  // a bus without a logind may be met
  PlayedLogind logind(address_);
  EXPECT_TRUE(WaitUntil([&] { return logind.last() == "sleep delay"; }));
  logind.Prepare(true);
  EXPECT_TRUE(WaitUntil([&] { return notice->about_to_sleep(); }));
}

// A bus that hangs would hold up all that an agent does.
TEST_F(LogindSleep, ABusThatDoesNotAnswerHoldsUpNobody) {
  const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;
  snprintf(name.sun_path, sizeof(name.sun_path), "%s/bus", folder_.c_str());
  ASSERT_EQ(bind(listener, reinterpret_cast<const sockaddr*>(&name), sizeof(name)), 0);
  ASSERT_EQ(listen(listener, 1), 0);
  std::unique_ptr<SleepNotice> notice = SleepNotice::Start();
  ASSERT_NE(notice, nullptr) << "it has not waited for an answer";
  EXPECT_FALSE(notice->about_to_sleep());
  usleep(100'000);  // it is being asked; the end of this test does not wait for the answer either
  notice.reset();
  close(listener);
}

TEST_F(LogindSleep, WithoutABusOrALogindThereIsNoNoticeAndNoError) {
  EXPECT_FALSE(SleepNotice::Start()->about_to_sleep());
  EXPECT_TRUE(absl::IsUnimplemented(KeepAwake::Start("a test").status()));
  StartBus();
  EXPECT_FALSE(SleepNotice::Start()->about_to_sleep());
  EXPECT_TRUE(absl::IsUnimplemented(KeepAwake::Start("a test").status()));
}

TEST_F(LogindSleep, AMachineIsKeptFromIdlingWhileSomebodyWantsItAwake) {
  StartBus();
  PlayedLogind logind(address_);
  absl::StatusOr<std::unique_ptr<KeepAwake>> awake = KeepAwake::Start("a test");
  ASSERT_TRUE(awake.ok()) << awake.status();
  EXPECT_EQ(logind.last(), "idle block");
  EXPECT_FALSE(logind.released());
  awake->reset();
  EXPECT_TRUE(WaitUntil([&] { return logind.released(); }));
}

}  // namespace
}  // namespace espalier
