#include "worker/serve/generation_service.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "common/observe/log.h"

namespace espalier {

absl::StatusOr<std::unique_ptr<GenerationService>> GenerationService::Create(
    const Decoder& decoder, const Tokenizer& tokenizer, const Options& options) {
  ASSIGN_OR_RETURN(BatchGenerator batch, BatchGenerator::Create(decoder, options.batch));
  return std::unique_ptr<GenerationService>(
      new GenerationService(decoder, tokenizer, options, std::move(batch)));
}

GenerationService::GenerationService(const Decoder& decoder, const Tokenizer& tokenizer,
                                     const Options& options, BatchGenerator batch)
    : decoder_(decoder),
      tokenizer_(tokenizer),
      options_(options),
      rows_(options.batch.rows),
      batch_(std::move(batch)) {}

absl::StatusOr<std::shared_ptr<Answer>> GenerationService::Submit(Request request) {
  for (const Sequence& sequence : request.sequences) {
    RETURN_IF_ERROR(CheckSequence(sequence, decoder_.config(), options_.batch.positions));
  }
  const auto count = static_cast<int64_t>(request.sequences.size());
  const int64_t most = options_.batch.rows + options_.most_waiting;
  if (count > most) {
    return absl::InvalidArgumentError(absl::StrCat(
        count, " answers at once are more than the ", most,
        " that this server generates or keeps waiting; ask for fewer, or start it with "
        "a larger --batch or --queue"));
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  if (stopped_) return absl::UnavailableError("the server is shutting down");
  if (unfinished_ + count > most) {
    return absl::ResourceExhaustedError(
        absl::StrCat(unfinished_, " answers are being generated or wait, and ", count,
                     " more exceed the ", most, " that may; try again in a moment"));
  }
  unfinished_ += count;
  auto answer = std::make_shared<Answer>();
  arrived_.push_back({answer, std::move(request)});
  changed_.notify_all();
  return answer;
}

void GenerationService::Stop() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!stopped_) stopped_ = RealClock().Now();
  changed_.notify_all();
}

int64_t GenerationService::rows() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return rows_;
}

int64_t GenerationService::turns() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return turns_;
}

bool GenerationService::Wait(std::vector<Arrived>& arrived) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return !arrived_.empty() || stopped_ || !choices_.empty(); });
  arrived = std::exchange(arrived_, {});
  if (!stopped_) return true;
  return (!arrived.empty() || !choices_.empty()) && RealClock().Now() < *stopped_ + options_.grace;
}

absl::Status GenerationService::Run() {
  const absl::Status status = RunUntilStopped();
  const absl::Status told =
      status.ok() ? absl::UnavailableError("the server shut down before the answer was complete")
                  : status;
  FailAll(told);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!stopped_) stopped_ = RealClock().Now();
  for (Arrived& one : std::exchange(arrived_, {})) one.answer->Fail(told);
  return status;
}

absl::Status GenerationService::RunUntilStopped() {
  std::vector<Arrived> arrived;
  while (Wait(arrived)) {
    for (Arrived& one : arrived) Take(std::move(one));
    CancelAbandoned();
    if (const absl::Status status = Turn(); !status.ok()) {
      LogWarning(absl::StrCat("generating failed: ", status.message()));
      if (!absl::IsResourceExhausted(status)) {
        FailAll(status);
        return status;
      }
      RETURN_IF_ERROR(TakeFewerRows(status));
    }
  }
  for (Arrived& one : arrived) one.answer->Fail(absl::UnavailableError("the server shut down"));
  return absl::OkStatus();
}

absl::Status GenerationService::TakeFewerRows(const absl::Status& why) {
  BatchGenerator::Options with = options_.batch;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    rows_ = with.rows = std::max<int64_t>(1, rows_ / 2);
  }
  // Whoever is told finds fewer rows. Not RESOURCE_EXHAUSTED, which says that too many ask.
  FailAll(absl::UnavailableError(absl::StrCat(
      "memory ran out while generating; ask again in a moment (", why.message(), ")")));
  batch_.reset();  // its memory is needed
  LogWarning(absl::StrCat("goes on with ", with.rows, " answers at a time"));
  ASSIGN_OR_RETURN(batch_, BatchGenerator::Create(decoder_, with));
  return absl::OkStatus();
}

void GenerationService::Take(Arrived arrived) {
  const int64_t owner = next_owner_++;
  int64_t number = 0;
  for (Sequence& sequence : arrived.request.sequences) {
    auto choice = std::make_unique<Choice>(
        Choice{arrived.answer, number++, TextStream(tokenizer_, arrived.request.stops)});
    if (arrived.request.continues) choice->text.Continue();
    sequence.owner = owner;
    sequence.on_token = [choice = choice.get()](int32_t id) {
      std::string text = choice->text.Append(id);
      if (!text.empty()) choice->answer->Push({choice->number, std::move(text), {}, 0});
      return !choice->text.stopped();
    };
    const absl::StatusOr<int64_t> id = batch_->Add(std::move(sequence));
    if (id.ok()) {
      choices_[*id] = std::move(choice);
    } else {  // checked before
      arrived.answer->Fail(id.status());
      const std::lock_guard<std::mutex> lock(mutex_);
      --unfinished_;
    }
  }
}

void GenerationService::CancelAbandoned() {
  for (const auto& [id, choice] : choices_) {
    if (choice->answer->abandoned()) batch_->Cancel(id);
  }
}

absl::Status GenerationService::Turn() {
  ASSIGN_OR_RETURN(const std::vector<Continued> ended, batch_->Turn());
  for (const Continued& one : ended) End(one);
  const std::lock_guard<std::mutex> lock(mutex_);
  ++turns_;
  return absl::OkStatus();
}

void GenerationService::End(const Continued& one) {
  const auto found = choices_.find(one.id);
  if (found == choices_.end()) return;
  Choice& choice = *found->second;
  if (one.end == SequenceEnd::kFailed) {
    choice.answer->Fail(NotNumbers());
    LogWarning(absl::StrCat("an answer failed: ", NotNumbers().message()));
  } else {
    choice.answer->Push(
        {choice.number, choice.text.Finish(), one.end, static_cast<int64_t>(one.new_ids.size())});
  }
  choices_.erase(found);
  const std::lock_guard<std::mutex> lock(mutex_);
  --unfinished_;
}

void GenerationService::FailAll(const absl::Status& status) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [id, choice] : choices_) choice->answer->Fail(status);
  unfinished_ -= static_cast<int64_t>(choices_.size());
  choices_.clear();
}

}  // namespace espalier
