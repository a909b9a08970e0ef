// StreamPlaces: who may hold one more of the streams that a service keeps open. One certificate has
// a share of them, so that a machine that opens streams without end keeps nobody else out, and who
// says nothing gives the place back. Used by agent_service.h and attach_service.h. Not thread-safe:
// the owner's lock guards it.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/utf8.h"
#include "common/rpc/server_credentials.h"
#include "coordinator/core/node.h"

namespace espalier {

class StreamPlaces {
 public:
  struct Limits {
    size_t streams_max = 4096;
    // Of certificates of one name. A node has one agent and a few workers, and a few streams that
    // broke and are not known to be over yet.
    size_t streams_per_caller_max = 64;
    // From a stream's opening to its hello, which clients send at once.
    absl::Duration hello_within = absl::Seconds(10);
  };
  // `who` are on the other side, in the plural, for messages.
  StreamPlaces(absl::string_view who, Limits limits) : who_(who), limits_(limits) {}

  // `now` is monotonic. RESOURCE_EXHAUSTED: there is none. Callers without a certificate have no
  // limit: they are the user who runs espalierd.
  absl::Status Take(StreamId id, const Caller& caller, absl::Duration now) {
    if (callers_.size() >= limits_.streams_max) {
      return absl::ResourceExhaustedError(
          absl::StrCat(callers_.size(), " ", who_, " are attached, which is the most"));
    }
    const bool limited = caller.role.has_value();
    if (limited && counts_[caller.name] >= limits_.streams_per_caller_max) {
      return absl::ResourceExhaustedError(absl::StrCat(
          counts_[caller.name], " streams of ", who_, " are open with the certificate \"",
          AsUtf8(caller.name),
          "\", which is the most for one; end some of them, or give each machine its own"));
    }
    callers_[id] = limited ? std::optional(caller.name) : std::nullopt;
    silent_[id] = now + limits_.hello_within;
    if (limited) ++counts_[caller.name];
    return absl::OkStatus();
  }

  void HelloSaid(StreamId id) { silent_.erase(id); }

  // The streams whose hello is overdue, each once: DEADLINE_EXCEEDED ends them.
  std::vector<StreamId> TakeOverdue(absl::Duration now) {
    std::vector<StreamId> overdue;
    for (auto next = silent_.begin(); next != silent_.end() && next->second <= now;) {
      overdue.push_back(next->first);
      next = silent_.erase(next);
    }
    return overdue;
  }
  absl::Status Overdue() const {
    return absl::DeadlineExceededError(
        absl::StrCat("no hello came within ", absl::FormatDuration(limits_.hello_within),
                     " of the stream's opening; it is the first message of ", who_));
  }

  // Does nothing for a stream without a place.
  void Free(StreamId id) {
    const auto caller = callers_.find(id);
    if (caller == callers_.end()) return;
    if (caller->second && --counts_[*caller->second] == 0) counts_.erase(*caller->second);
    callers_.erase(caller);
    silent_.erase(id);
  }

 private:
  const std::string who_;
  const Limits limits_;
  // The name of the certificate of each stream, where it came with one.
  std::map<StreamId, std::optional<std::string>> callers_;
  std::map<std::string, size_t> counts_;
  // Until when each may say its hello. Streams that open later have larger numbers, so the first is
  // the first that is due.
  std::map<StreamId, absl::Duration> silent_;
};

}  // namespace espalier
