#include "worker/state/checkpoint_copies.h"

#include <algorithm>
#include <array>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/base/sha256.h"
#include "common/base/status_macros.h"
#include "common/observe/log.h"

namespace espalier {
namespace {

// The same on all ranks of a generation, and in no other generation.
absl::StatusOr<std::string> DrawMark(const RankContext& context) {
  std::array<char, 16> mark{};
  const std::string mine = RandomHex(mark.size() / 2);
  std::copy(mine.begin(), mine.end(), mark.begin());
  RETURN_IF_ERROR(BroadcastValue(context.collective, mark, Rank(0)));
  return std::string(mark.begin(), mark.end());
}

std::string MarkOf(const std::string& mark, int64_t rank) { return absl::StrCat(mark, "-", rank); }

// The lowest rank whose mark is in this rank's folder; -1: not even its own could be left there.
absl::StatusOr<std::vector<int32_t>> FindSharers(const RankContext& context,
                                                 CheckpointStore& store) {
  const int64_t mine = context.collective.rank().value();
  ASSIGN_OR_RETURN(const std::string mark, DrawMark(context));
  absl::Status left;
  RETURN_IF_ERROR(RunTogether(context, [&] {
    left = store.LeaveMark(MarkOf(mark, mine));
    return mine == 0 ? left : absl::OkStatus();
  }));
  if (!left.ok()) {
    LogWarning(absl::StrCat("this node keeps no copy of the checkpoints: ", left.message()));
  }
  int32_t lowest = -1;
  RETURN_IF_ERROR(RunTogether(context, [&] {
    for (int32_t rank = 0; left.ok() && lowest < 0; ++rank) {
      if (rank == mine || store.HasMark(MarkOf(mark, rank))) lowest = rank;
    }
    return absl::OkStatus();
  }));
  ASSIGN_OR_RETURN(std::vector<int32_t> folders, GatherValues(context.collective, lowest));
  store.RemoveMark(MarkOf(mark, mine));
  return folders;
}

}  // namespace

std::vector<int32_t> ChooseWriters(absl::Span<const int32_t> folders, int copies) {
  std::set<int32_t> writers;
  for (const int32_t folder : folders) {
    if (folder >= 0 && static_cast<int>(writers.size()) < copies) writers.insert(folder);
  }
  std::vector<int32_t> chosen;
  for (const int32_t folder : folders) chosen.push_back(writers.count(folder) > 0 ? folder : -1);
  return chosen;
}

absl::StatusOr<CopyRole> DivideCopies(const RankContext& context, CheckpointStore& store,
                                      const v1::CheckpointSpec& spec) {
  const auto mine = static_cast<int32_t>(context.collective.rank().value());
  std::vector<int32_t> folders(context.collective.world_size(), 0);
  if (folders.size() > 1 && !spec.shared()) {
    ASSIGN_OR_RETURN(folders, FindSharers(context, store));
  }
  CopyRole role;
  role.keeps = folders[mine] == mine || folders[mine] < 0;
  role.writer = ChooseWriters(folders, spec.copies())[mine];
  role.writes = role.writer == mine;
  RETURN_IF_ERROR(RunTogether(context, [&] {
    if (!role.writes) return absl::OkStatus();
    const absl::Status prepared = store.Prepare();
    if (prepared.ok() || mine == 0) return prepared;
    LogWarning(absl::StrCat("this node keeps no copy of the checkpoints: ", prepared.message()));
    role.writes = false;
    return absl::OkStatus();
  }));
  return role;
}

}  // namespace espalier
