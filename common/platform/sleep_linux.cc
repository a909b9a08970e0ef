// SleepNotice and KeepAwake from logind, over D-Bus: see org.freedesktop.login1(5). Without a
// system bus, or a logind on it, as in containers, there is neither.
#include <fcntl.h>
#include <systemd/sd-bus.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/platform/platform.h"

namespace espalier {
namespace {

constexpr char kService[] = "org.freedesktop.login1";
constexpr char kPath[] = "/org/freedesktop/login1";
constexpr char kManager[] = "org.freedesktop.login1.Manager";
constexpr uint64_t kAnswerMicroseconds = 2'000'000;
// Without a bus, how often it is looked for again.
constexpr absl::Duration kLookEvery = absl::Seconds(10);

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

// A wish that logind heeds while it is open.
class Inhibitor {
 public:
  Inhibitor() = default;
  Inhibitor(const Inhibitor&) = delete;
  Inhibitor& operator=(const Inhibitor&) = delete;
  ~Inhibitor() { Release(); }

  // `how`: "delay" or "block".
  bool Take(sd_bus* bus, const char* what, const char* why, const char* how) {
    Release();
    sd_bus_message* answer = nullptr;
    int fd = -1;
    const int asked = sd_bus_call_method(bus, kService, kPath, kManager, "Inhibit", nullptr,
                                         &answer, "ssss", what, "Espalier", why, how);
    if (asked >= 0 && sd_bus_message_read(answer, "h", &fd) >= 0) {
      fd_ = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    }
    sd_bus_message_unref(answer);
    return fd_ >= 0;
  }
  void Release() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

 private:
  int fd_ = -1;
};

// Everything happens when somebody asks; in between messages wait in the socket.
class LogindSleep final : public SleepNotice {
 public:
  bool Connect() {
    looked_at_ = TimeWithSleep();
    bus_ = OpenBus();
    const bool listens =
        bus_ != nullptr && sd_bus_match_signal(bus_.get(), nullptr, kService, kPath, kManager,
                                               "PrepareForSleep", &OnPrepare, this) >= 0;
    if (!listens || !Delay()) bus_.reset();
    return bus_ != nullptr;
  }

  bool about_to_sleep() override {
    if (bus_ == nullptr && TimeWithSleep() - looked_at_ >= kLookEvery) Connect();
    int processed = bus_ == nullptr ? 0 : 1;
    while (processed > 0) processed = sd_bus_process(bus_.get(), nullptr);
    if (processed < 0) {
      // The bus has ended, and what it would say of waking up with it.
      bus_.reset();
      inhibitor_.Release();
      about_to_sleep_ = false;
    }
    if (std::exchange(woke_, false) && bus_ != nullptr) Delay();
    return about_to_sleep_;
  }
  void Allow() override { inhibitor_.Release(); }

 private:
  bool Delay() {
    return inhibitor_.Take(bus_.get(), "sleep", "Jobs leave this machine before it sleeps",
                           "delay");
  }
  static int OnPrepare(sd_bus_message* message, void* self, sd_bus_error*) {
    int begins = 0;
    if (sd_bus_message_read(message, "b", &begins) < 0) return 0;
    auto& notice = *static_cast<LogindSleep*>(self);
    notice.about_to_sleep_ = begins != 0;
    notice.woke_ = begins == 0;
    return 0;
  }

  Bus bus_;
  Inhibitor inhibitor_;
  absl::Duration looked_at_;
  bool about_to_sleep_ = false;
  bool woke_ = false;
};

class LogindAwake final : public KeepAwake {
 public:
  bool Take(const std::string& reason) {
    const Bus bus = OpenBus();
    return bus != nullptr && inhibitor_.Take(bus.get(), "idle", reason.c_str(), "block");
  }

 private:
  Inhibitor inhibitor_;
};

}  // namespace

std::unique_ptr<SleepNotice> SleepNotice::Start() {
  auto notice = std::make_unique<LogindSleep>();
  if (!notice->Connect()) return nullptr;
  return notice;
}

absl::StatusOr<std::unique_ptr<KeepAwake>> KeepAwake::Start(absl::string_view reason) {
  auto awake = std::make_unique<LogindAwake>();
  if (awake->Take(std::string(reason))) return awake;
  return absl::UnimplementedError(absl::StrCat(
      "a Linux without logind has no common way to keep the machine awake (for: ", reason,
      "); turn off what would suspend it"));
}

}  // namespace espalier
