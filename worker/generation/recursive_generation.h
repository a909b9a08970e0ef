// Generation by tiny recursive models: each id follows from all supervision steps over the whole
// sequence so far, since nothing of a step can be kept for the next id. Positions begin at 0, and
// text is not padded. Used by worker/generate_verb.cc. Compute thread.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/generation/batch_generator.h"
#include "worker/model/recursive_model.h"

namespace espalier {

// The new ids of one sequence, by a model of text. INVALID_ARGUMENT as CheckSequence, and for a
// model of puzzles, which has an answer and no continuation.
absl::StatusOr<std::vector<int32_t>> Generate(const RecursiveModel& model, Sequence sequence);

// The likeliest id of each place of a puzzle, after all supervision steps. Behind a short one
// `end_of_text` fills the places that the model is made for, as in the rows that it has learnt,
// where every place sees all. INVALID_ARGUMENT for a puzzle that the model cannot take, and for a
// model of text.
absl::StatusOr<std::vector<int32_t>> Answer(const RecursiveModel& model,
                                            const std::vector<int32_t>& puzzle,
                                            int32_t end_of_text);

}  // namespace espalier
