#include "worker/reward/external_verifier.h"

#include <poll.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "common/observe/log.h"
#include "worker/reward/external_answer.h"
#include "worker/reward/line_process.h"
#include "worker/reward/record.h"

namespace espalier {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kAloneFailuresMax = 2, kOutagesMax = 3;  // outages that excuse a completion
constexpr absl::Duration kBackOffMax = absl::Seconds(10);
constexpr int kDoublingsMax = 20;
constexpr char kByHand[] =
    ". Try it by hand: it reads a request from standard input and answers on standard output";
constexpr char kSlow[] = "; if it needs longer, raise train.verifier.time_limit_seconds";
constexpr char kFlush[] =
    "; it is to flush each answer (Python: print(..., flush=True)); if it has to load for longer, "
    "raise train.verifier.start_limit_seconds";
// How often an end is looked for that shows in no pipe.
constexpr absl::Duration kTick = absl::Milliseconds(200);
// In the place of a completion: what is asked to see whether the program works, and what was asked
// by a call that was stopped.
constexpr size_t kProbe = std::numeric_limits<size_t>::max();
constexpr size_t kForgotten = kProbe - 1;

// A completion of the call under way.
struct Asked {
  std::string request;  // but for its id
  int failures = 0;     // while nobody has ever answered
  int alone_failures = 0;
  int outages = 0;     // that came when it had failed
  bool alone = false;  // to be given to a process that has no other
};

// A completion that may be the reason for the ends of its processes.
struct Suspect {
  size_t index = 0;
  std::string reason;
};

// A place for a process, which may have to be started again.
struct Seat {
  std::optional<LineProcess> process;
  std::map<int64_t, size_t> owed;  // id of a request -> index of its completion
  bool exclusive = false;          // what is owed was to be alone
  bool answered = false;           // this process has, once
  absl::Duration heard;            // since when it owes an answer and was silent (Awake)
  int failures = 0;                // in a row
  int unanswered_failures = 0;     // of these, since any seat has answered
  absl::Duration start_at = -absl::InfiniteDuration();
};

class ExternalVerifier final : public Verifier {
 public:
  ExternalVerifier(ExternalVerifierOptions options, Clock& clock)
      : options_(std::move(options)),
        clock_(clock),
        program_(absl::StrJoin(options_.command, " ")),
        seats_(static_cast<size_t>(options_.processes)) {}

  ~ExternalVerifier() override { EndAll(); }

  absl::Status Start() {
    for (Seat& seat : seats_) RETURN_IF_ERROR(StartProcess(seat));
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<Judgement>> Judge(absl::Span<const Completion> completions,
                                               const TrainingMoment& moment) override {
    return JudgeUntil(completions, moment, /*stop=*/false);
  }

  absl::StatusOr<std::vector<Judgement>> JudgeUntil(absl::Span<const Completion> completions,
                                                    const TrainingMoment& moment,
                                                    const std::atomic<bool>& stop) override {
    RETURN_IF_ERROR(Prepare(completions, moment));
    const absl::Duration begin = clock_.Monotonic();
    while (open_ > 0) {
      if (stop) return Forget();
      if (next_ > 0 && clock_.Monotonic() - begin > options_.call_limit) LeaveTheRest();
      if (const absl::Status status = Turn(); !status.ok()) {
        EndAll();
        return status;
      }
    }
    return std::move(judgements_);
  }

 private:
  // Leaves what is owed to its processes: what they say of it yet is nobody's.
  absl::Status Forget() {
    for (Seat& seat : seats_) {
      for (auto& [id, index] : seat.owed) index = kForgotten;
      seat.exclusive = !seat.owed.empty();
    }
    ForgetFailures();
    return absl::CancelledError("judging was stopped");
  }

  // Somebody has answered, or a call begins anew: what failed before is no row.
  void ForgetFailures() {
    for (Seat& seat : seats_) seat.unanswered_failures = 0;
    probe_failures_ = 0;
    failed_at_ = absl::InfiniteDuration();
  }

  // What was not handed out yet.
  void LeaveTheRest() {
    const size_t left = judgements_.size() - next_;
    for (size_t i = 0; i < left; ++i) waiting_.pop_back();  // they came in order
    judgements_.resize(next_);
    open_ -= left;
  }

  // How long calls have looked at programs that could run. From one look to the next more than a
  // tick has passed where the machine slept, which macOS counts, or where all of them were frozen.
  absl::Duration Awake() {
    const absl::Duration now = clock_.Monotonic();
    awake_ += std::min(now - looked_at_, kTick);
    looked_at_ = now;
    return awake_;
  }

  absl::Status Prepare(absl::Span<const Completion> completions, const TrainingMoment& moment) {
    looked_at_ = clock_.Monotonic();
    asked_.clear();
    waiting_.clear();
    suspects_.clear();
    probing_ = outage_ = false;
    next_ = 0;
    judgements_.assign(completions.size(), {});
    open_ = completions.size();
    for (size_t i = 0; i < completions.size(); ++i) {
      ASSIGN_OR_RETURN(Json record, ParseRecord(completions[i].record));
      const Json request{{"record", std::move(record)},
                         {"completion", std::string(completions[i].text)},
                         {"step", moment.step},
                         {"progress", moment.progress}};
      asked_.push_back({.request = DumpJson(request).substr(1)});
      waiting_.push_back(i);
    }
    return absl::OkStatus();
  }

  // Hands out what waits, waits for something to happen, and takes what has.
  absl::Status Turn() {
    std::vector<pollfd> waits;
    absl::Duration until = kTick;
    const absl::Duration now = clock_.Monotonic();
    const absl::Duration awake = Awake();
    for (Seat& seat : seats_) {
      if (!seat.process && has_work() && now >= seat.start_at) {
        const absl::Status started = StartProcess(seat);
        if (!started.ok() && !answered()) return started;
        if (!started.ok()) RETURN_IF_ERROR(CountFailure(seat, 0, started));
      }
      if (!seat.process) continue;
      HandOut(seat);
      RETURN_IF_ERROR(Take(seat));
      if (seat.process) HandOut(seat);  // into the room that answers have made
    }
    for (const Seat& seat : seats_) {
      if (seat.process) seat.process->AppendWaits(waits);
      if (!seat.owed.empty()) until = std::min(until, seat.heard + LimitOf(seat) - awake);
      if (!seat.process && has_work()) until = std::min(until, seat.start_at - now);
    }
    if (open_ == 0) return absl::OkStatus();
    const int64_t milliseconds = std::max<int64_t>(1, absl::ToInt64Milliseconds(until));
    poll(waits.data(), static_cast<nfds_t>(waits.size()), static_cast<int>(milliseconds));
    return absl::OkStatus();
  }

  absl::Status StartProcess(Seat& seat) {
    const size_t number = static_cast<size_t>(&seat - seats_.data()) + 1;
    ASSIGN_OR_RETURN(LineProcess process,
                     LineProcess::Start({.command = options_.command,
                                         .folder = options_.folder,
                                         .name = absl::StrCat("verifier ", number)}));
    seat.process.emplace(std::move(process));
    seat.answered = false;
    return absl::OkStatus();
  }

  // Somebody has, once: the program works.
  bool answered() const { return !known_.empty(); }
  bool probe_is_due() const { return !suspects_.empty() && !probing_; }
  bool has_work() const { return !waiting_.empty() || probe_is_due(); }

  void HandOut(Seat& seat) {
    if (probe_is_due()) {
      if (!seat.owed.empty()) return;
      probing_ = true;
      seat.exclusive = true;
      Ask(seat, kProbe, known_);
    }
    while (!waiting_.empty() && !seat.exclusive &&
           seat.owed.size() < static_cast<size_t>(options_.in_flight)) {
      const size_t index = waiting_.front();
      if (asked_[index].alone && !seat.owed.empty()) return;
      waiting_.pop_front();
      next_ = std::max(next_, index + 1);
      seat.exclusive = asked_[index].alone;
      Ask(seat, index, asked_[index].request);
    }
  }

  void Ask(Seat& seat, size_t index, const std::string& request) {
    if (seat.owed.empty()) seat.heard = Awake();
    const int64_t id = next_id_++;
    seat.owed[id] = index;
    seat.process->Send(absl::StrCat("{\"id\":", id, ",", request));
  }

  absl::Status Take(Seat& seat) {
    if (const absl::Status moved = seat.process->Move(); !moved.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("the verifier `", program_, "` wrote ",
                                                     moved.message(), "; answers are short"));
    }
    while (const std::optional<std::string> line = seat.process->TakeLine()) {
      if (const absl::Status status = TakeAnswer(seat, *line); !status.ok()) {
        return NoAnswer(program_, *line, status.message());
      }
    }
    if (seat.process->ended()) return Fail(seat, /*silent=*/false);
    const bool owes = !seat.owed.empty();
    if (owes && Awake() > seat.heard + LimitOf(seat)) return Fail(seat, /*silent=*/true);
    return absl::OkStatus();
  }

  absl::Status TakeAnswer(Seat& seat, const std::string& line) {
    ASSIGN_OR_RETURN(ExternalAnswer answer, ParseExternalAnswer(line));
    const auto owed = seat.owed.find(answer.id);
    if (owed == seat.owed.end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "nothing with the id ", answer.id, " is asked of it, or it has answered already"));
    }
    if (owed->second == kProbe) {
      SettleSuspects();
    } else if (owed->second != kForgotten) {
      judgements_[owed->second] = std::move(answer.judgement);
      --open_;
      if (!answered()) known_ = asked_[owed->second].request;
    }
    seat.owed.erase(owed);
    seat.exclusive = false;
    seat.answered = true;
    seat.failures = 0;
    ForgetFailures();
    seat.heard = Awake();
    return absl::OkStatus();
  }

  // Ends the process of the seat, and decides about what it owed.
  absl::Status Fail(Seat& seat, bool silent) {
    const absl::Duration limit = LimitOf(seat);
    seat.process->End(absl::ZeroDuration());
    const std::string reason = absl::StrCat(
        "the verifier gave no answer",
        silent ? absl::StrCat(" within ", absl::FormatDuration(limit), answered() ? kSlow : kFlush)
               : absl::StrCat(": ", seat.process->Ending()));
    LogWarning(absl::StrCat(reason, "; its process is started again (", program_, ")"));
    seat.process.reset();
    const bool blamed = answered() && seat.owed.size() == 1;
    int asked = 0;
    for (const auto& [id, index] : std::exchange(seat.owed, {})) {
      if (index == kForgotten) continue;
      if (index == kProbe) {
        probing_ = false;
        outage_ = true;
        asked = ++probe_failures_;
        continue;
      }
      if (!answered()) asked = std::max(asked, ++asked_[index].failures);
      asked_[index].alone_failures += blamed ? 1 : 0;
      if (blamed && (silent || asked_[index].alone_failures >= kAloneFailuresMax)) {
        suspects_.push_back({index, reason});
      } else {
        AskAlone(index);
      }
    }
    seat.exclusive = false;
    return CountFailure(seat, asked, absl::UnavailableError(reason));
  }

  // Says when the seat may start a process again; or, when that has no sense any more, what was
  // tried. `asked`: how often what it owed has failed, here and elsewhere.
  absl::Status CountFailure(Seat& seat, int asked, const absl::Status& reason) {
    const absl::Duration awake = Awake();
    ++seat.failures;
    failed_at_ = std::min(failed_at_, awake);
    const int in_a_row = std::max(++seat.unanswered_failures, asked);
    const bool outage = answered() && awake - failed_at_ < options_.start_limit;
    if (in_a_row >= options_.failures_max && !outage) {
      const std::string what = absl::StrCat("the verifier `", program_, "` failed ", in_a_row,
                                            " times in a row without an answer in between");
      return absl::Status(reason.code(),
                          absl::StrCat(what, "; the last time: ", reason.message(), kByHand));
    }
    const int doublings = std::min(seat.failures - 1, kDoublingsMax);
    const absl::Duration back_off = options_.first_back_off * (1 << doublings);
    seat.start_at = clock_.Monotonic() + std::min(kBackOffMax, back_off);
    return absl::OkStatus();
  }

  void AskAlone(size_t index) {
    asked_[index].alone = true;
    waiting_.push_front(index);
  }

  // The program works. It was these, unless it did not when it was asked before; but what an outage
  // follows every time brings it about.
  void SettleSuspects() {
    probing_ = false;
    const bool outage = std::exchange(outage_, false);
    for (Suspect& suspect : std::exchange(suspects_, {})) {
      if (outage && ++asked_[suspect.index].outages < kOutagesMax) {
        asked_[suspect.index].alone_failures = 0;
        AskAlone(suspect.index);
        continue;
      }
      judgements_[suspect.index] = {.total = options_.failed_reward,
                                    .invalid = std::move(suspect.reason)};
      --open_;
    }
  }

  absl::Duration LimitOf(const Seat& seat) const {
    return seat.answered ? options_.time_limit
                         : std::max(options_.time_limit, options_.start_limit);
  }

  // All inputs first, so that sound programs end at the same time.
  void EndAll() {
    for (Seat& seat : seats_) {
      if (seat.process) seat.process->CloseInput();
    }
    const absl::Duration deadline = clock_.Monotonic() + options_.end_limit;
    for (Seat& seat : seats_) {
      const absl::Duration left = deadline - clock_.Monotonic();
      if (seat.process) seat.process->End(seat.owed.empty() ? left : absl::ZeroDuration());
      seat = Seat();
    }
    ForgetFailures();
  }

  const ExternalVerifierOptions options_;
  Clock& clock_;
  const std::string program_;
  absl::Duration looked_at_, awake_;
  std::vector<Seat> seats_;
  int64_t next_id_ = 1;
  std::string known_;  // the request that was answered first, but for its id
  // Since the last answer:
  int probe_failures_ = 0;
  absl::Duration failed_at_ = absl::InfiniteDuration();  // the first failure (Awake)
  // Of the call under way, by the index of a completion.
  std::vector<Asked> asked_;
  std::vector<Judgement> judgements_;
  std::deque<size_t> waiting_;
  size_t next_ = 0;  // the first that was never handed out; all behind it wait, in order
  std::vector<Suspect> suspects_;
  bool probing_ = false;  // somebody has the probe
  bool outage_ = false;   // somebody had, and did not answer
  size_t open_ = 0;       // without a judgement as yet
};

}  // namespace

absl::StatusOr<std::unique_ptr<Verifier>> StartExternalVerifier(ExternalVerifierOptions options,
                                                                Clock& clock) {
  RETURN_IF_ERROR(CheckOptions(options));
  const std::vector<std::string> command = options.command;
  auto verifier = std::make_unique<ExternalVerifier>(std::move(options), clock);
  const absl::Status started = verifier->Start();
  if (started.ok()) return verifier;
  return absl::Status(
      started.code(),
      absl::StrCat("the verifier cannot be started: ", started.message(), StartHint(command)));
}

}  // namespace espalier
