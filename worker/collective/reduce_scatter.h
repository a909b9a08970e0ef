// ReduceScatter: the half of an exchange in which every rank adds up its part. It receives all
// ranks' chunks of that part into scratch memory, adds them in rank order, and says so. Each
// message whose completion makes room starts the next; the caller polls until nothing is pending.
// Used by exchange.h. Communication thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "worker/collective/layout.h"
#include "worker/collective/messages.h"

namespace espalier {

// Memory that outlives one operation, so that steps allocate nothing. Grows only.
class ScratchMemory {
 public:
  // Uninitialised; valid until the next call.
  std::byte* Get(int64_t bytes) {
    if (bytes > size_) {
      memory_.reset(new std::byte[bytes]);
      size_ = bytes;
    }
    return memory_.get();
  }

 private:
  std::unique_ptr<std::byte[]> memory_;
  int64_t size_ = 0;
};

class ReduceScatter {
 public:
  struct Events {
    // A chunk of this rank's part holds its sum, in fp32.
    std::function<void(int64_t chunk)> summed;
    // A chunk of another's part is sent: its place is free.
    std::function<void(int owner, int64_t chunk)> sent;
  };
  // All outlive the messages.
  ReduceScatter(Messages& messages, const Layout& layout, int depth, ScratchMemory& scratch,
                Events events);
  void Start();
  int64_t bytes_sent() const { return bytes_sent_; }

 private:
  void SendNext(int owner);
  void Receive(int64_t chunk);
  void Arrived(int64_t chunk);
  void Sum(int64_t chunk);
  std::byte* Addend(int64_t chunk, int peer);

  Messages& messages_;
  const Layout& layout_;
  const int depth_;
  const Events events_;
  const int64_t rows_;              // chunks of my part being received at a time
  std::vector<int64_t> next_send_;  // per owner: chunk of its part to send next
  std::vector<int> missing_;        // per chunk of my part: addends that have not come
  std::byte* addends_;              // [rows_][ranks - 1][chunk bytes]
  int64_t bytes_sent_ = 0;
};

}  // namespace espalier
