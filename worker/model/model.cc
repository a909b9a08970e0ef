#include "worker/model/model.h"

#include "worker/ops/ops.h"

namespace espalier {

using torch::Tensor;

void CheckIds(const Tensor& ids, const DecoderConfig& config, int64_t extra) {
  if (!ids.is_cpu() || ids.numel() == 0) return;
  const Tensor wrong = ids.lt(0).logical_and(ids.ne(extra)).logical_or(ids.ge(config.vocab_size));
  if (!wrong.any().item<bool>()) return;
  TORCH_CHECK_INDEX(false, "token id ", ids.masked_select(wrong)[0].item<int64_t>(),
                    " is outside the model's vocabulary of ", config.vocab_size,
                    " ids; was the data prepared with another tokenizer?");
}

Tensor EmbeddedIds(const Tensor& ids, const Tensor& embedding, const EmbeddingRows& lookup) {
  if (!lookup.rows.defined()) return ops::Embedding(ids, embedding);
  return ops::Embedding(lookup.row_of.index_select(0, ids.flatten()).view_as(ids), lookup.rows);
}

}  // namespace espalier
