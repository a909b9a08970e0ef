// A verifier that is a program of the user's, in any language: JSON lines on its standard input and
// output (README.md has the protocol). Used by open_verifier.cc. One thread, in which Judge waits
// for the answers.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "worker/reward/verifier.h"

namespace espalier {

struct ExternalVerifierOptions {
  std::vector<std::string> command;  // the program and its arguments
  std::string folder;                // where it runs; empty: where this process does
  int processes = 1;                 // 1 to 256, among which completions are shared out
  int in_flight = 1;                 // completions that a process is given at a time, 1 to 4096
  // A process that owes an answer and gives none for so long is ended. Here as in start_limit, what
  // the machine sleeps does not count.
  absl::Duration time_limit = absl::Seconds(10);
  // The same until its first answer, when the program may have to load much.
  absl::Duration start_limit = absl::Seconds(60);
  // What a completion earns that no judgement can be had of (see below).
  double failed_reward = 0;
  // Ends in a row before Judge gives up: of processes in one place, or behind one question wherever
  // it was asked, and nobody has answered in between. Where the program has answered before, also
  // no sooner than start_limit after the first end.
  int failures_max = 5;
  // Before a process that failed is started again: this, and twice as long each further time.
  absl::Duration first_back_off = absl::Milliseconds(100);
  // After so long a call hands out nothing more and returns when what it has handed out is judged.
  absl::Duration call_limit = absl::Seconds(1);
  // Ending: from the end of its input to SIGKILL.
  absl::Duration end_limit = absl::Seconds(1);
};

// INVALID_ARGUMENT: one is out of range; NOT_FOUND: there is no such folder.
absl::Status CheckOptions(const ExternalVerifierOptions& options);
// What to add where the program is not found: empty, or that one text was given for several words.
std::string StartHint(const std::vector<std::string>& command);

// Starts the processes. NOT_FOUND: no such program; and as CheckOptions.
//
// When a process ends or is silent for too long, the completions that it had are given once more,
// each to a process that has no other at the time. One that was alone with a process that stayed
// silent, or twice with one that ended, may be the reason: the program is asked what it has
// answered before. Where it answers at once, the completion earns failed_reward and is not
// accepted, and what happened is why. Where it does not, there is an outage, which is waited for,
// and the completion is asked again, unless three outages came after it; a program that has never
// answered is broken itself. Judge fails when the reason is not one completion: UNAVAILABLE, or as
// it cannot be started, after failures_max, with how the process ended and what it said last;
// INVALID_ARGUMENT for a line that is no answer, with the line and what is wrong with it. All
// processes are ended then; the next call starts them again. A call that is stopped ends none: what
// they say yet of what they had is dropped, and time goes on for it in the next call.
absl::StatusOr<std::unique_ptr<Verifier>> StartExternalVerifier(ExternalVerifierOptions options,
                                                                Clock& clock = RealClock());

}  // namespace espalier
