// A library to preload (LD_PRELOAD): the wall clock of a process is ahead of the system's by the
// nanoseconds in the file that ESPALIER_CLOCK_SHIFT names, as it is at each reading (8 bytes, of
// this machine). Monotonic clocks stay as they are. Used by chaos.py. Any thread.
//
// A wait until an instant of the wall clock ends when that comes by the shifted clock; one that had
// begun before a shift keeps its length, while a real jump forward would end it.
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdarg>
#include <cstdint>
#include <cstdlib>

namespace {

constexpr int64_t kNanoseconds = 1'000'000'000;
// Uptimes are less and the time of day is more: which clock a deadline is of.
constexpr time_t kOfTheWallClock = 500'000'000;

const std::atomic<int64_t>* Map() {
  const char* path = std::getenv("ESPALIER_CLOCK_SHIFT");
  if (path == nullptr) return nullptr;
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return nullptr;
  void* mapped = mmap(nullptr, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
  close(file);
  return mapped == MAP_FAILED ? nullptr : static_cast<const std::atomic<int64_t>*>(mapped);
}

// Mapped when this is loaded, and not by the first who asks for the time: that may be UCX (of Open
// MPI 5), while it rewrites mmap, and would wait for itself for ever.
const std::atomic<int64_t>* shift = nullptr;
__attribute__((constructor)) void MapWhenLoaded() { shift = Map(); }

int64_t Shift() { return shift == nullptr ? 0 : shift->load(std::memory_order_relaxed); }

timespec Plus(const timespec& time, int64_t nanoseconds) {
  const int64_t sum = time.tv_nsec + nanoseconds % kNanoseconds + kNanoseconds;
  return {static_cast<time_t>(time.tv_sec + nanoseconds / kNanoseconds + sum / kNanoseconds - 1),
          static_cast<long>(sum % kNanoseconds)};
}

// The next definition of a function: the system's.
template <typename Function>
Function* Real(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

timespec Unshifted(const timespec& deadline) {
  return deadline.tv_sec < kOfTheWallClock ? deadline : Plus(deadline, -Shift());
}

bool WaitsByTheWallClock(long number, long operation) {
  return number == SYS_futex && (operation & FUTEX_CLOCK_REALTIME) != 0 &&
         (operation & FUTEX_CMD_MASK) == FUTEX_WAIT_BITSET;
}

}  // namespace

extern "C" {

int clock_gettime(clockid_t clock, timespec* time) noexcept {
  static auto* const real = Real<int(clockid_t, timespec*)>("clock_gettime");
  const int result = real(clock, time);
  const bool is_wall = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
  if (result == 0 && is_wall) *time = Plus(*time, Shift());
  return result;
}

int gettimeofday(timeval* time, void*) noexcept {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  *time = {now.tv_sec, static_cast<suseconds_t>(now.tv_nsec / 1000)};
  return 0;
}

time_t time(time_t* result) noexcept {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (result != nullptr) *result = now.tv_sec;
  return now.tv_sec;
}

int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                           const timespec* deadline) {
  static auto* const real =
      Real<int(pthread_cond_t*, pthread_mutex_t*, const timespec*)>("pthread_cond_timedwait");
  const timespec unshifted = Unshifted(*deadline);
  return real(condition, mutex, &unshifted);
}

int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                           const timespec* deadline) {
  static auto* const real =
      Real<int(pthread_cond_t*, pthread_mutex_t*, clockid_t, const timespec*)>(
          "pthread_cond_clockwait");
  const timespec unshifted = Unshifted(*deadline);
  return real(condition, mutex, clock, &unshifted);
}

int sem_timedwait(sem_t* semaphore, const timespec* deadline) {
  static auto* const real = Real<int(sem_t*, const timespec*)>("sem_timedwait");
  const timespec unshifted = Unshifted(*deadline);
  return real(semaphore, &unshifted);
}

// Abseil waits with futex(2) itself.
long syscall(long number, ...) noexcept {
  static auto* const real = Real<long(long, ...)>("syscall");
  long words[6];
  va_list list;
  va_start(list, number);
  for (long& word : words) word = va_arg(list, long);
  va_end(list);
  timespec unshifted;
  if (WaitsByTheWallClock(number, words[1]) && words[3] != 0) {
    unshifted = Unshifted(*reinterpret_cast<const timespec*>(words[3]));
    words[3] = reinterpret_cast<long>(&unshifted);
  }
  return real(number, words[0], words[1], words[2], words[3], words[4], words[5]);
}

}  // extern "C"
