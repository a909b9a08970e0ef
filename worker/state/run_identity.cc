#include "worker/state/run_identity.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/base/status_macros.h"

namespace espalier {
namespace {

struct Digest {
  uint64_t spec = 0;
  std::array<char, 64> data{};
  std::array<char, 32> version{};
};

template <size_t N>
void CopyText(const std::string& text, std::array<char, N>& out) {
  std::memcpy(out.data(), text.data(), std::min(text.size(), N));
}

// The parts of a spec that decide what is computed. FNV-1a over its bytes, which are the same in
// two processes of one program.
uint64_t HashSpec(v1::JobSpec spec) {
  spec.mutable_data()->clear_path();
  spec.mutable_model()->clear_from();
  spec.mutable_checkpoint()->clear_directory();
  spec.clear_launch();
  const std::string bytes = spec.SerializeAsString();
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : bytes) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3ULL;
  return hash;
}

absl::Status Differs(size_t rank, absl::string_view what, absl::string_view remedy) {
  return absl::FailedPreconditionError(
      absl::StrCat("rank ", rank, " and rank 0 have different ", what, "; ", remedy));
}

}  // namespace

absl::Status CheckSameRun(const RankContext& context, const RunIdentity& identity) {
  Digest mine;
  mine.spec = HashSpec(identity.spec);
  CopyText(identity.data_hash, mine.data);
  CopyText(ESPALIER_VERSION, mine.version);
  ASSIGN_OR_RETURN(const std::vector<Digest> all, GatherValues(context.collective, mine));
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank].version != all[0].version) {
      return Differs(rank, "versions of espalier-worker", "install the same one on all nodes");
    }
    if (all[rank].spec != all[0].spec) {
      return Differs(rank, "jobs", "give every rank the same job file");
    }
    if (all[rank].data != all[0].data) {
      return Differs(rank, "data",
                     "copy the prepared folder (data.path) of one node to the others, or run "
                     "`espalier data prepare` with the same files and options everywhere");
    }
  }
  return absl::OkStatus();
}

}  // namespace espalier
