// Nothing that is thrown in a parallel loop ends the process: it reaches the caller.
#include "worker/kernels/parallel.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <mutex>
#include <new>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "worker/kernels/gemm.h"

namespace espalier::cpu {
namespace {

TEST(ParallelLoops, RunEveryIterationOnce) {
  std::vector<int> even(1000), uneven(1000);
  ParallelFor(1000, [&](int64_t i) { ++even[i]; });
  ParallelForUneven(1000, [&](int64_t i) { ++uneven[i]; });
  EXPECT_EQ(even, std::vector<int>(1000, 1));
  EXPECT_EQ(uneven, std::vector<int>(1000, 1));
}

TEST(ParallelLoops, EachThreadIsReachedOnce) {
  std::mutex mutex;
  std::multiset<std::thread::id> threads;
  OnEachThread([&] {
    const std::lock_guard lock(mutex);
    threads.insert(std::this_thread::get_id());
  });
  EXPECT_EQ(threads.size(), static_cast<size_t>(omp_get_max_threads()));
  EXPECT_EQ(std::set(threads.begin(), threads.end()).size(), threads.size());
}

TEST(ParallelLoops, AnExceptionOfAnyThreadReachesTheCaller) {
  const auto no_memory_at_the_end = [](int64_t i) {
    if (i == 999) throw std::bad_alloc();
  };
  EXPECT_THROW(ParallelFor(1000, no_memory_at_the_end), std::bad_alloc);
  EXPECT_THROW(ParallelForUneven(1000, no_memory_at_the_end), std::bad_alloc);
}

TEST(ParallelLoops, OfManyExceptionsOneReachesTheCaller) {
  EXPECT_THROW(ParallelFor(1000, [](int64_t) { throw std::runtime_error("each"); }),
               std::runtime_error);
}

// Rows of the result that would overlap are refused.
TEST(ParallelLoops, AProductThatIsRefusedIsAnException) {
  const std::vector<float> floats(16);
  const std::vector<Bf16> narrow(16);
  std::vector<float> c(16);
  const GemmShape shape{4, 4, 4};
  const auto product = [&](const auto& numbers) {
    using Real = typename std::decay_t<decltype(numbers)>::value_type;
    const Matrix<Real> matrix{numbers.data(), 4};
    ParallelFor(2, [&](int64_t) { Gemm(shape, matrix, matrix, 0, c.data(), /*c_stride=*/1); });
  };
  EXPECT_THROW(product(floats), std::exception);
  EXPECT_THROW(product(narrow), std::exception);
}

}  // namespace
}  // namespace espalier::cpu
