// RftProgress: what a run of rft has sampled so far, and the file that holds it, so that a run that
// is ended goes on where it was: written after every order of completions, whole or not at all, and
// trusted by its hash alone. The ranks take the furthest that one of them finds in its checkpoint
// folder. Used by rft_asks.h, rft_practice.h and rft_table.h. Compute thread; JSON is pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/file_system.h"
#include "worker/sync/together.h"

namespace espalier {

inline constexpr char kRftProgressName[] = "rft.progress.json";

// The first accepted completion of a prompt.
struct RftRow {
  int64_t prompt = 0;  // its row in the table
  int64_t sample = 0;
  std::vector<int32_t> ids;
  std::string text;
  friend bool operator==(const RftRow&, const RftRow&) = default;
};

// A prompt that was asked, and has no accepted completion yet.
struct RftPending {
  int64_t prompt = 0;
  int64_t made = 0;  // samples of it
  friend bool operator==(const RftPending&, const RftPending&) = default;
};

// Of prompts that were answered with the likeliest ids: the first of the split so far.
struct RftTest {
  int64_t answers = 0;
  int64_t right = 0;
  int64_t answered = 0;  // so that it could be read
  double accuracy() const { return Share(right); }
  double answer_rate() const { return Share(answered); }
  friend bool operator==(const RftTest&, const RftTest&) = default;

 private:
  double Share(int64_t part) const {
    return answers > 0 ? static_cast<double>(part) / static_cast<double>(answers) : 0;
  }
};

struct RftProgress {
  std::string run;                  // RunName: what the rows are a function of
  RftTest before;                   // the model as it began
  int64_t prompts = 0;              // that were asked, the first so many
  std::vector<RftPending> pending;  // of these, which are to be asked again; by prompt
  std::vector<RftRow> rows;         // by prompt
  int64_t samples = 0;              // made
  int64_t new_tokens = 0;
  double sample_seconds = 0;
  double verify_seconds = 0;
  // Grows with every order.
  int64_t reach() const { return before.answers + samples; }
  // Prompts of which it is known what becomes.
  int64_t done() const { return prompts - static_cast<int64_t>(pending.size()); }
  friend bool operator==(const RftProgress&, const RftProgress&) = default;
};

std::string RftProgressToJson(const RftProgress& progress);
// DATA_LOSS: it is cut or altered. UNIMPLEMENTED: another version of this program wrote it.
absl::StatusOr<RftProgress> RftProgressFromJson(absl::string_view json);

// What of such a text no other has.
std::string RftProgressHead(absl::string_view json);

// Of what the steps learn from; never 0.
uint64_t HashOf(const std::vector<RftRow>& rows);

// ABORTED: the file is of the same run, as nobody with one of the heads `own` wrote it, and reaches
// further than `mine`, which is not to replace it.
absl::Status CheckNoFurther(FileSystem& files, const std::string& path, const RftProgress& mine,
                            absl::Span<const std::string> own);

// The furthest of what the ranks find in their folders, of this run; without rows where none has
// any. Every rank calls it and has the same. Once steps have learnt from rows (`learns_from`, their
// HashOf, is not 0), that is any with these rows, whatever its settings were, and none with others:
// two nodes may have sampled apart from each other. What is damaged or not of this run is told and
// left out; and kept under another name, where it is of another run, or another version, and this
// one will be written: FAILED_PRECONDITION when it cannot be.
absl::StatusOr<RftProgress> LoadRftProgress(const RankContext& context, FileSystem& files,
                                            const std::string& folder, const std::string& run,
                                            uint64_t learns_from);

}  // namespace espalier
