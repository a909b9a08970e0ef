// SleepNotice from IOKit, see IORegisterForSystemPower in IOKit/pwr_mgt/IOPMLib.h.
#include <IOKit/IOMessage.h>
#include <IOKit/pwr_mgt/IOPMLib.h>
#include <dispatch/dispatch.h>

#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/platform/platform.h"

namespace espalier {
namespace {

class SystemSleep final : public SleepNotice {
 public:
  SystemSleep() {
    root_ = IORegisterForSystemPower(this, &port_, &OnMessage, &notifier_);
    if (!registered()) return;
    queue_ = dispatch_queue_create("espalier.sleep", DISPATCH_QUEUE_SERIAL);
    IONotificationPortSetDispatchQueue(port_, queue_);
  }
  ~SystemSleep() override {
    if (!registered()) return;
    IODeregisterForSystemPower(&notifier_);
    IONotificationPortSetDispatchQueue(port_, nullptr);
    dispatch_sync_f(queue_, nullptr, [](void*) {});  // none is under way after that
    Allow();
    IONotificationPortDestroy(port_);
    IOServiceClose(root_);
    dispatch_release(queue_);
  }

  bool registered() const { return root_ != MACH_PORT_NULL; }
  bool about_to_sleep() override {
    absl::MutexLock lock(&mutex_);
    return about_to_sleep_;
  }
  void Allow() override {
    absl::MutexLock lock(&mutex_);
    if (asks_) IOAllowPowerChange(root_, *asks_);
    asks_.reset();
  }

 private:
  static void OnMessage(void* self, io_service_t, natural_t message, void* id) {
    static_cast<SystemSleep*>(self)->Take(message, reinterpret_cast<intptr_t>(id));
  }
  // A machine that would fall asleep of itself may: who needs it awake says so (KeepAwake).
  void Take(natural_t message, intptr_t id) {
    absl::MutexLock lock(&mutex_);
    if (message == kIOMessageCanSystemSleep) {
      IOAllowPowerChange(root_, id);
    } else if (message == kIOMessageSystemWillSleep) {
      about_to_sleep_ = true;
      asks_ = id;
    } else if (message == kIOMessageSystemHasPoweredOn || message == kIOMessageSystemWillNotSleep) {
      about_to_sleep_ = false;
      asks_.reset();
    }
  }

  io_connect_t root_ = MACH_PORT_NULL;
  IONotificationPortRef port_ = nullptr;
  io_object_t notifier_ = 0;
  dispatch_queue_t queue_ = nullptr;
  absl::Mutex mutex_;
  bool about_to_sleep_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<intptr_t> asks_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<SleepNotice> SleepNotice::Start() {
  auto notice = std::make_unique<SystemSleep>();
  if (!notice->registered()) return nullptr;
  return notice;
}

}  // namespace espalier
