#include "worker/train/evaluate.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "common/base/shares.h"
#include "common/base/status_macros.h"
#include "worker/sync/exact_sums.h"
#include "worker/tensor/torch_compat.h"
#include "worker/train/layer_progress.h"

namespace espalier {
namespace {

// The part of a rank, of parts that follow each other.
SlotRange RangeOf(size_t rank, const std::vector<int64_t>& parts) {
  const int64_t begin = std::accumulate(parts.begin(), parts.begin() + rank, int64_t{0});
  return {begin, begin + parts[rank]};
}

}  // namespace

Evaluator::Evaluator(const RankContext& context, const Model& model, const Task& task,
                     Options options)
    : context_(context),
      model_(model),
      task_(task),
      options_(options),
      transfers_(model.device()),
      worked_(LayerProgress(context, model.device())) {
  sequences_ = task.validation()->size();
  if (options_.max_sequences > 0) sequences_ = std::min(sequences_, options_.max_sequences);
}

// Added in rank order, so that all ranks have the same bits.
Evaluator::Sums Evaluator::TotalOf(const std::vector<Sums>& all) {
  Sums total;
  for (const Sums& part : all) {
    total.loss += part.loss;
    total.tokens += part.tokens;
    total.figure_tokens += part.figure_tokens;
    total.left += part.left;
    total.called_away += part.called_away;
    for (size_t i = 0; i < kEvaluationFigures; ++i) total.figures[i] += part.figures[i];
  }
  return total;
}

Evaluation Evaluator::Mean(const Sums& total) const {
  const auto tokens = static_cast<double>(std::max<int64_t>(1, total.tokens));
  Evaluation mean{.loss = total.loss / tokens, .tokens = total.tokens};
  const auto of_figures = static_cast<double>(std::max<int64_t>(1, total.figure_tokens));
  const std::vector<absl::string_view> names = task_.EvaluationFigures();
  for (size_t i = 0; i < names.size(); ++i) {
    mean.figures.push_back({names[i], total.figures[i] / of_figures});
  }
  return mean;
}

// Sequences of a rank's next pass. The ranks meet before the one after it, so all that have any
// left take the same time, which the memory of each lets them; at least one each.
int64_t Evaluator::RowsOf(size_t rank, const std::vector<Sums>& all,
                          const std::vector<int64_t>& shares) {
  int64_t rows = all[rank].most;
  for (size_t other = 0; other < all.size(); ++other) {
    if (all[other].left == 0) continue;  // as where its share is 0
    rows = std::min(rows, all[other].most * shares[rank] / shares[other]);
  }
  return std::max<int64_t>(1, rows);
}

absl::Status Evaluator::Pass(const Model& model, SlotRange range, Sums& sums) {
  std::vector<int64_t> ids(range.size());
  std::iota(ids.begin(), ids.end(), range.begin);
  ASSIGN_OR_RETURN(const Samples samples, task_.validation()->Read(std::move(ids)));
  return CatchTorch("evaluating", [&] {
    torch::NoGradGuard no_grad;
    const SlotRange all{0, range.size()};
    const TokenBatch batch = task_.Batch(samples, all, transfers_);
    std::vector<double> found = task_.EvaluationSums(model, batch, {.worked = worked_});
    TORCH_CHECK(found.size() <= 1 + kEvaluationFigures, "too many figures of an evaluation");
    if (options_.reproducible) {
      std::transform(found.begin(), found.end(), found.begin(), RoundedForSum);
    }
    sums.loss += found[0];
    for (size_t i = 1; i < found.size(); ++i) sums.figures[i - 1] += found[i];
    sums.tokens += task_.LossTokens(samples, all);
    sums.figure_tokens += task_.FigureTokens(samples, all);
  });
}

absl::StatusOr<int64_t> Evaluator::PassThatFits(const Around& around, SlotRange range, Sums& sums) {
  const Model& model = around.model != nullptr ? *around.model : model_;
  int64_t rows = range.size();
  for (bool last_try = false;; rows = (rows + 1) / 2) {
    const absl::Status status = Pass(model, {range.begin, range.begin + rows}, sums);
    if (status.ok()) return rows;
    if (!absl::IsResourceExhausted(status) || last_try) return status;
    around.free_memory();
    last_try = rows == 1;
  }
}

absl::StatusOr<std::optional<Evaluation>> Evaluator::RunPractice(const Around& around) {
  const absl::Duration begin = context_.clock.Monotonic();
  const Model& model = around.model != nullptr ? *around.model : model_;
  const RolloutAround with{.shares = around.sequences,
                           .limit = around.limit,
                           .called_away = around.called_away,
                           .begins = nullptr,
                           .done = nullptr,
                           .worked = worked_,
                           .free_memory = around.free_memory,
                           .step = around.step,
                           .in_one_go = around.in_one_go,
                           .got_on = around.got_on};
  if (std::exchange(begun_step_, around.step) != around.step) seconds_ = 0;
  ASSIGN_OR_RETURN(std::optional<Practice::Findings> found,
                   options_.practice->Evaluate(model, with));
  seconds_ += absl::ToDoubleSeconds(context_.clock.Monotonic() - begin);
  if (!found) return std::nullopt;
  begun_step_ = -1;
  return Evaluation{.loss = found->loss,
                    .tokens = found->answers,
                    .seconds = seconds_,
                    .figures = std::move(found->figures)};
}

absl::StatusOr<std::optional<Evaluation>> Evaluator::Run(const Around& around) {
  if (options_.practice != nullptr) return RunPractice(around);
  const absl::Duration begin = context_.clock.Monotonic();
  const Collective& collective = context_.collective;
  const auto rank = static_cast<size_t>(collective.rank().value());
  std::vector<int64_t> shares = around.sequences;
  if (shares.empty()) shares.assign(collective.world_size(), 1);
  SlotRange mine = RangeOf(rank, DivideByShares(sequences_, shares));
  Sums sums;
  sums.most = options_.reproducible ? 1 : around.micro_batch;
  for (;;) {
    sums.left = mine.size();
    sums.called_away = around.called_away && around.called_away() ? 1 : 0;
    ASSIGN_OR_RETURN(const std::vector<Sums> all, GatherValues(context_.collective, sums));
    const Sums total = TotalOf(all);
    if (total.left == 0) {
      Evaluation found = Mean(total);
      found.seconds = absl::ToDoubleSeconds(context_.clock.Monotonic() - begin);
      return found;
    }
    if (total.called_away > 0) return std::nullopt;
    if (mine.size() == 0) continue;
    const int64_t wanted = std::min(RowsOf(rank, all, shares), mine.size());
    const SlotRange next{mine.begin, mine.begin + wanted};
    ASSIGN_OR_RETURN(const int64_t rows, PassThatFits(around, next, sums));
    if (rows < wanted) sums.most = rows;
    mine.begin += rows;
  }
}

}  // namespace espalier
