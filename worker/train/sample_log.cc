#include "worker/train/sample_log.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"

namespace espalier {

absl::StatusOr<std::unique_ptr<SampleLog>> SampleLog::Open(const RankContext& context,
                                                           FileSystem& files,
                                                           const std::string& folder) {
  int64_t run = absl::ToUnixMillis(context.clock.Now());
  RETURN_IF_ERROR(BroadcastValue(context.collective, run, Rank(0)));
  const std::string name =
      absl::StrFormat("run-%014d-rank-%02d-of-%02d.jsonl", run, context.collective.rank().value(),
                      context.collective.world_size());
  std::unique_ptr<WritableFile> file;
  RETURN_IF_ERROR(RunTogether(context, [&]() -> absl::Status {
    RETURN_IF_ERROR(files.MakeDirectory(folder));
    ASSIGN_OR_RETURN(file, files.Create(JoinPath(folder, name)));
    return absl::OkStatus();
  }));
  return std::unique_ptr<SampleLog>(new SampleLog(std::move(file)));
}

absl::Status SampleLog::Append(Step step, absl::Span<const int64_t> samples) {
  const std::string line = absl::StrCat("{\"step\":", step.value(), ",\"samples\":[",
                                        absl::StrJoin(samples, ","), "]}\n");
  return file_->Append(
      absl::MakeConstSpan(reinterpret_cast<const std::byte*>(line.data()), line.size()));
}

}  // namespace espalier
