// SleepNotice and KeepAwake from logind, over D-Bus: see org.freedesktop.login1(5). Without a
// system bus, or a logind on it, as in containers, there is neither.
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <systemd/sd-bus.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/platform/platform.h"

namespace espalier {
namespace {

constexpr char kService[] = "org.freedesktop.login1";
constexpr char kPath[] = "/org/freedesktop/login1";
constexpr char kManager[] = "org.freedesktop.login1.Manager";
constexpr uint64_t kAnswerMicroseconds = 2'000'000;
// Between looks for a bus with a logind, where there was none: at first, and then twice as long
// each time.
constexpr absl::Duration kFirstPause = absl::Milliseconds(500);
constexpr absl::Duration kLongestPause = absl::Seconds(10);

struct CloseBus {
  void operator()(sd_bus* bus) const { sd_bus_close_unref(bus); }
};
using Bus = std::unique_ptr<sd_bus, CloseBus>;

Bus OpenBus() {
  sd_bus* bus = nullptr;
  if (sd_bus_open_system(&bus) < 0) return nullptr;
  sd_bus_set_method_call_timeout(bus, kAnswerMicroseconds);
  return Bus(bus);
}

// A wish that logind heeds while it is open; movable.
class Inhibitor {
 public:
  Inhibitor() = default;
  Inhibitor(Inhibitor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Inhibitor& operator=(Inhibitor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Inhibitor() {
    if (fd_ >= 0) close(fd_);
  }

  // `how`: "delay" or "block". Waits for the answer.
  static Inhibitor Take(sd_bus* bus, const char* what, const char* why, const char* how) {
    Inhibitor inhibitor;
    sd_bus_message* answer = nullptr;
    int fd = -1;
    const int asked = sd_bus_call_method(bus, kService, kPath, kManager, "Inhibit", nullptr,
                                         &answer, "ssss", what, "Espalier", why, how);
    if (asked >= 0 && sd_bus_message_read(answer, "h", &fd) >= 0) {
      inhibitor.fd_ = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    }
    sd_bus_message_unref(answer);
    return inhibitor;
  }
  bool is_open() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// Talks with logind on a thread of its own: a bus may be there later than this process, or not
// answer.
class LogindSleep final : public SleepNotice {
 public:
  LogindSleep() : wake_(eventfd(0, EFD_CLOEXEC)), thread_([this] { Listen(); }) {}
  ~LogindSleep() override {
    {
      absl::MutexLock lock(&mutex_);
      stops_ = true;
      if (socket_ >= 0) shutdown(socket_, SHUT_RDWR);
    }
    eventfd_write(wake_, 1);
    thread_.join();
    close(wake_);
  }

  bool about_to_sleep() override {
    absl::MutexLock lock(&mutex_);
    return about_to_sleep_;
  }
  void Allow() override { Hold(Inhibitor()); }

 private:
  void Listen() {
    absl::Duration pause = kFirstPause;
    while (!stops_) {
      if (ServeOneBus()) pause = kFirstPause;
      Rest(nullptr, pause);
      pause = std::min(2 * pause, kLongestPause);
    }
  }

  // Until it ends; false: there was none with a logind.
  bool ServeOneBus() {
    const Bus bus = OpenBus();
    if (bus == nullptr) return false;
    Use(bus.get());
    const bool subscribed = Subscribe(bus.get());
    while (subscribed && !stops_ && Process(bus.get())) Rest(bus.get(), kLongestPause);
    Use(nullptr);
    // With the bus ends what it would say of waking up.
    Hold(Inhibitor());
    Say(false);
    return subscribed;
  }
  // What the end of this object breaks off.
  void Use(sd_bus* bus) {
    absl::MutexLock lock(&mutex_);
    socket_ = bus == nullptr ? -1 : sd_bus_get_fd(bus);
    if (stops_ && socket_ >= 0) shutdown(socket_, SHUT_RDWR);
  }
  bool Subscribe(sd_bus* bus) {
    return sd_bus_match_signal(bus, nullptr, kService, kPath, kManager, "PrepareForSleep",
                               &OnPrepare, this) >= 0 &&
           Delay(bus);
  }
  // False: nothing more is to be heard on it.
  bool Process(sd_bus* bus) {
    int processed = 1;
    while (processed > 0) processed = sd_bus_process(bus, nullptr);
    if (processed < 0) return false;
    if (!std::exchange(woke_, false)) return true;
    const bool waits = Delay(bus);
    Say(false);
    return waits;
  }
  bool Delay(sd_bus* bus) {
    Inhibitor inhibitor =
        Inhibitor::Take(bus, "sleep", "Jobs leave this machine before it sleeps", "delay");
    const bool taken = inhibitor.is_open();
    Hold(std::move(inhibitor));
    return taken;
  }
  // Until something comes by the bus, or this object ends.
  void Rest(sd_bus* bus, absl::Duration longest) const {
    pollfd awaited[] = {{wake_, POLLIN, 0}, {-1, 0, 0}};
    if (bus != nullptr) {
      awaited[1] = {sd_bus_get_fd(bus), static_cast<int16_t>(sd_bus_get_events(bus)), 0};
    }
    poll(awaited, std::size(awaited), static_cast<int>(absl::ToInt64Milliseconds(longest)));
  }
  static int OnPrepare(sd_bus_message* message, void* self, sd_bus_error*) {
    int begins = 0;
    if (sd_bus_message_read(message, "b", &begins) < 0) return 0;
    auto& notice = *static_cast<LogindSleep*>(self);
    notice.woke_ = begins == 0;
    if (begins != 0) notice.Say(true);
    return 0;
  }
  void Say(bool about_to_sleep) {
    absl::MutexLock lock(&mutex_);
    about_to_sleep_ = about_to_sleep;
  }
  void Hold(Inhibitor inhibitor) {
    absl::MutexLock lock(&mutex_);
    inhibitor_ = std::move(inhibitor);
  }

  absl::Mutex mutex_;
  Inhibitor inhibitor_ ABSL_GUARDED_BY(mutex_);
  bool about_to_sleep_ ABSL_GUARDED_BY(mutex_) = false;
  int socket_ ABSL_GUARDED_BY(mutex_) = -1;
  bool woke_ = false;  // of the thread
  std::atomic<bool> stops_{false};
  const int wake_;
  std::thread thread_;
};

class LogindAwake final : public KeepAwake {
 public:
  bool Take(const std::string& reason) {
    const Bus bus = OpenBus();
    if (bus != nullptr) inhibitor_ = Inhibitor::Take(bus.get(), "idle", reason.c_str(), "block");
    return inhibitor_.is_open();
  }

 private:
  Inhibitor inhibitor_;
};

}  // namespace

std::unique_ptr<SleepNotice> SleepNotice::Start() { return std::make_unique<LogindSleep>(); }

absl::StatusOr<std::unique_ptr<KeepAwake>> KeepAwake::Start(absl::string_view reason) {
  auto awake = std::make_unique<LogindAwake>();
  if (awake->Take(std::string(reason))) return awake;
  return absl::UnimplementedError(absl::StrCat(
      "a Linux without logind has no common way to keep the machine awake (for: ", reason,
      "); turn off what would suspend it"));
}

}  // namespace espalier
