#include "tests/worker/support/failing_allocator.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

namespace espalier {
namespace {

thread_local int64_t left = -1;  // allocations until the one that fails; negative: none will
thread_local bool all_after = false;
thread_local bool watched = false;
thread_local std::vector<size_t> sizes;  // asked for while watched

// None is marked `override`: `allocate` is const in LibTorch 1.13 and is not in newer ones, which
// ask for `copy_data` too. What this LibTorch does not know is never called.
class CountingAllocator final : public c10::Allocator {
 public:
  explicit CountingAllocator(c10::Allocator* real) : real_(real) {}
  c10::DataPtr allocate(size_t bytes) const {
    if (watched) sizes.push_back(bytes);
    if (left > 0 ? --left == 0 : left == 0 && all_after) {
      TORCH_CHECK(false, "DefaultCPUAllocator: can't allocate memory: you tried to allocate ",
                  bytes, " bytes. (made up)");
    }
    return real_->allocate(bytes);
  }
  c10::DataPtr allocate(size_t bytes) { return std::as_const(*this).allocate(bytes); }
  c10::DeleterFnPtr raw_deleter() const { return real_->raw_deleter(); }
  void copy_data(void* to, const void* from, std::size_t bytes) const {
    std::memcpy(to, from, bytes);
  }

 private:
  c10::Allocator* real_;
};

}  // namespace

FailingAllocator::FailingAllocator(int64_t failing, bool and_all_after) {
  static CountingAllocator& counting = *new CountingAllocator(c10::GetCPUAllocator());
  c10::SetCPUAllocator(&counting, /*priority=*/1);
  left = failing;
  all_after = and_all_after;
  watched = true;
  sizes.clear();
}

FailingAllocator::~FailingAllocator() {
  left = -1;
  watched = false;
}

bool FailingAllocator::failed() { return left == 0; }

int64_t FailingAllocator::count(size_t bytes) {
  return std::count(sizes.begin(), sizes.end(), bytes);
}

}  // namespace espalier
