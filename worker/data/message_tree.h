// Conversations as OpenAssistant's files have them: trees of messages, of which each may have been
// answered several times, and ranked. A row is a whole tree, {"prompt": {..., "replies": [...]}},
// or one message of a tree, {"message_id": ..., "parent_id": ..., "role": ..., "text": ...}. Used
// by fine_tune_row.cc and preparer.cc. One thread.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"
#include "worker/data/row_source.h"

namespace espalier {

bool IsMessageTree(const nlohmann::ordered_json& row);

// Rows that are one message each, as trees {"tree": [messages]}: those of one tree follow each
// other in a file. Whole trees stay as they are.
std::unique_ptr<RowSource> JoinMessages(std::unique_ptr<RowSource> rows);

// The best conversation of a tree, as ShareGPT's files have it, [{"from": ..., "value": ...}, ...]:
// from the first message on, of the answers to each the one of the lowest rank, of further
// questions the first that is answered; as far as the last answer. Messages that were deleted are
// not there. INVALID_ARGUMENT: it is no tree; FAILED_PRECONDITION (EmptyRow): it has no answer.
absl::StatusOr<nlohmann::ordered_json> BestConversation(const nlohmann::ordered_json& tree);

}  // namespace espalier
