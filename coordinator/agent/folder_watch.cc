#include "coordinator/agent/folder_watch.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/observe/log.h"

namespace espalier {
namespace {

// A look at a local disk is over by then.
constexpr absl::Duration kMoment = absl::Milliseconds(250);
// A look that lasts longer is worth a word.
constexpr absl::Duration kPatience = absl::Seconds(10);
constexpr size_t kChoresMax = 1000;

}  // namespace

std::optional<std::vector<FolderWatch::Chore>> FolderWatch::Board::AwaitWish() {
  absl::MutexLock lock(&mutex);
  const auto wish = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) { return wanted || stopped; };
  while (!changed.Wait(mutex, absl::InfiniteDuration(), wish)) {
  }
  if (stopped) return std::nullopt;
  wanted = false;
  looking = true;
  return std::exchange(chores, {});
}

void FolderWatch::Board::Show(v1::NodeReport report) {
  absl::MutexLock lock(&mutex);
  seen = std::move(report);
  looking = false;
  changed.WakeAll();
}

FolderWatch::FolderWatch(std::string folder, Look look, Clock& clock, v1::NodeReport before)
    : folder_(std::move(folder)), clock_(clock), board_(std::make_shared<Board>()) {
  {
    absl::MutexLock lock(&board_->mutex);
    board_->seen = before;
  }
  thread_ = std::thread([board = board_, folder = folder_, look = std::move(look),
                         before = std::move(before)]() mutable {
    while (const auto chores = board->AwaitWish()) {
      for (const Chore& chore : *chores) chore(folder);
      v1::NodeReport report;
      look(folder, before, report);
      before = report;
      board->Show(std::move(report));
    }
  });
}

FolderWatch::~FolderWatch() {
  bool looking = false;
  {
    absl::MutexLock lock(&board_->mutex);
    board_->stopped = true;
    looking = board_->looking;
    board_->changed.WakeAll();
  }
  if (looking) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

void FolderWatch::AddLatest(v1::NodeReport& report) {
  bool done = false;
  {
    absl::MutexLock lock(&board_->mutex);
    if (board_->done()) {
      board_->wanted = true;
      board_->changed.WakeAll();
      asked_at_ = clock_.Monotonic();
      const auto seen = [this]()
                            ABSL_EXCLUSIVE_LOCKS_REQUIRED(board_->mutex) { return board_->done(); };
      board_->changed.Wait(board_->mutex, kMoment, seen);
    }
    done = board_->done();
    report.MergeFrom(board_->seen);
  }
  Tell(done);
}

void FolderWatch::Do(Chore chore) {
  absl::MutexLock lock(&board_->mutex);
  if (board_->chores.size() < kChoresMax) board_->chores.push_back(std::move(chore));
  if (!std::exchange(board_->wanted, true)) asked_at_ = clock_.Monotonic();
  board_->changed.WakeAll();
}

void FolderWatch::Tell(bool done) {
  if (done == !told_) return;
  if (done) {
    LogInfo(absl::StrCat("the folder ", folder_, " answers again"));
  } else if (clock_.Monotonic() - asked_at_ >= kPatience) {
    LogWarning(absl::StrCat("the folder ", folder_,
                            " does not answer; what was seen there last is reported: look at its "
                            "disk or network mount"));
  } else {
    return;
  }
  told_ = !done;
}

}  // namespace espalier
