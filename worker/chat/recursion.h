// RecursionLimit: how deep parsing and running a chat template may go. Levels are counted, so that
// the same template is refused everywhere, and bytes of the stack too: a level takes several times
// as much of it in one build as in another. Used by worker/chat. One thread; made where the
// recursion begins.
#pragma once

#include <cstddef>
#include <cstdint>

namespace espalier {

class RecursionLimit {
 public:
  RecursionLimit(int levels_max, size_t stack_bytes_max)
      : levels_max_(levels_max), stack_bytes_max_(stack_bytes_max), begin_(Here()) {}

  // One level more, for as long as it lives.
  class Level {
   public:
    explicit Level(RecursionLimit& limit) : limit_(limit) { ++limit_.levels_; }
    ~Level() { --limit_.levels_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    RecursionLimit& limit_;
  };

  bool Exceeded() const {
    const uintptr_t here = Here();
    const uintptr_t used = begin_ > here ? begin_ - here : here - begin_;
    return levels_ > levels_max_ || used > stack_bytes_max_;
  }
  int levels_max() const { return levels_max_; }

 private:
  static uintptr_t Here() { return reinterpret_cast<uintptr_t>(__builtin_frame_address(0)); }

  const int levels_max_;
  const size_t stack_bytes_max_;
  const uintptr_t begin_;
  int levels_ = 0;
};

// macOS gives a thread 512 KiB, of which callers take some. What runs below a limit needs some
// more: to write or free a value that is 100 levels deep.
#ifdef __SANITIZE_ADDRESS__
inline constexpr size_t kStackOfTemplates = 8 * (160 << 10);  // its frames are several times larger
#else
inline constexpr size_t kStackOfTemplates = 160 << 10;
#endif

}  // namespace espalier
