// An update that dies between any two stores is finished to the bit.
#include "worker/optimizer/undo_log.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

namespace espalier {
namespace {

// One block after the other in memory that outlives the process; of each, one part is large and one
// may be missing.
class Blocks {
 public:
  static constexpr int64_t kBlocks = 3;
  static constexpr int64_t kBytes = 5000;

  Blocks() : memory_(Map(2 * kBlocks * kBytes)), log_memory_(Map(UndoLog::Bytes(kBlocks))) {
    for (size_t i = 0; i < memory_.size(); ++i) memory_[i] = static_cast<std::byte>(i % 7);
  }
  ~Blocks() {
    munmap(memory_.data(), memory_.size());
    munmap(log_memory_.data(), log_memory_.size());
  }

  UndoLog Log() const { return UndoLog(log_memory_, kBlocks); }
  UndoLog::Block Of(int64_t block) const {
    return {memory_.subspan(2 * block * kBytes, kBytes), absl::Span<std::byte>(),
            memory_.subspan((2 * block + 1) * kBytes, kBytes)};
  }
  // Not the same when it is made twice, nor when it is made by halves.
  void Change(int64_t block, void (*between)()) const {
    for (const absl::Span<std::byte>& part : Of(block)) {
      for (size_t i = 0; i < part.size(); ++i) {
        if (i == part.size() / 2 && between != nullptr) between();
        part[i] = static_cast<std::byte>(3 * static_cast<int>(part[i]) + 1);
      }
    }
  }
  void Update(uint64_t number, void (*at_store)()) const {
    UndoLog log = Log();
    log.at_mark = at_store;
    log.Begin(number);
    for (int64_t block = 0; block < kBlocks; ++block) log.Restore(block, Of(block));
    for (int64_t block = 0; block < kBlocks; ++block) {
      if (log.IsDone(block)) continue;
      log.Save(static_cast<int>(block % 2), block, Of(block));
      Change(block, at_store);
      log.Done(block);
    }
  }
  std::string Text() const {
    return {reinterpret_cast<const char*>(memory_.data()), memory_.size()};
  }

 private:
  static absl::Span<std::byte> Map(int64_t size) {
    void* at = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return {static_cast<std::byte*>(at), static_cast<size_t>(size)};
  }
  absl::Span<std::byte> memory_, log_memory_;
};

int stores_left = 0;
void DieAtStore() {
  if (stores_left-- == 0) _exit(3);
}

// Dies at that store; false: there are fewer.
bool UpdateAndDie(const Blocks& blocks, uint64_t number, int store) {
  const pid_t child = fork();
  if (child == 0) {
    stores_left = store;
    blocks.Update(number, DieAtStore);
    _exit(0);
  }
  int state = 0;
  waitpid(child, &state, 0);
  return WEXITSTATUS(state) == 3;
}

TEST(UndoLog, AnUpdateThatDiesAtAnyStoreIsFinishedToTheBit) {
  Blocks undisturbed;
  undisturbed.Update(1, nullptr);
  const std::string first = undisturbed.Text();
  undisturbed.Update(2, nullptr);
  int store = 0;
  for (bool died = true; died; ++store) {
    Blocks blocks;
    died = UpdateAndDie(blocks, 1, store);
    if (died) blocks.Update(1, nullptr);
    EXPECT_TRUE(blocks.Text() == first) << "died at store " << store;
    blocks.Update(2, nullptr);
    EXPECT_TRUE(blocks.Text() == undisturbed.Text()) << "the next update after " << store;
  }
  EXPECT_GT(store, 18);
}

TEST(UndoLog, FinishingMayDieAsWell) {
  Blocks undisturbed;
  undisturbed.Update(1, nullptr);
  for (int store = 0; store < 18; ++store) {
    for (int second = 0; second < 24; ++second) {
      Blocks blocks;
      UpdateAndDie(blocks, 1, store);
      UpdateAndDie(blocks, 1, second);
      blocks.Update(1, nullptr);
      ASSERT_TRUE(blocks.Text() == undisturbed.Text()) << store << " " << second;
    }
  }
}

}  // namespace
}  // namespace espalier
