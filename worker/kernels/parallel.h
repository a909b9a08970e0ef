// ParallelFor: a loop on OpenMP's threads whose body may throw. An exception must not leave a
// parallel region (the process would end); here the first one reaches the caller once all threads
// are done. Used by the CPU kernels of this folder, by worker/ops,
// worker/generation, worker/run.cc and worker/open_model.cc. Called from one thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>

namespace espalier::cpu {

// The first exception of a region's threads.
class FirstException {
 public:
  // Calls body(), unless something was thrown before.
  template <typename Body>
  void Run(const Body& body) noexcept {
    if (thrown_.load(std::memory_order_relaxed)) return;
    try {
      body();
    } catch (...) {
      if (!thrown_.exchange(true)) first_ = std::current_exception();
    }
  }
  // After the region.
  void Rethrow() const {
    if (first_ != nullptr) std::rethrow_exception(first_);
  }

 private:
  std::atomic<bool> thrown_ = false;
  std::exception_ptr first_;
};

// Calls body() on each of OpenMP's threads, once: what a system has to know of them.
template <typename Body>
void OnEachThread(const Body& body) {
  FirstException exception;
#pragma omp parallel
  exception.Run(body);
  exception.Rethrow();
}

// Calls body(i) for 0 <= i < n, each thread a run of neighbours: for iterations of equal work.
template <typename Body>
void ParallelFor(int64_t n, const Body& body) {
  FirstException exception;
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < n; ++i) exception.Run([&] { body(i); });
  exception.Rethrow();
}

// The same for few iterations of unequal work: each thread takes the next one.
template <typename Body>
void ParallelForUneven(int64_t n, const Body& body) {
  FirstException exception;
#pragma omp parallel for schedule(dynamic)
  for (int64_t i = 0; i < n; ++i) exception.Run([&] { body(i); });
  exception.Rethrow();
}

}  // namespace espalier::cpu
