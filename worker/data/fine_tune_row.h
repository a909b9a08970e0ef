// FineTuneRow: one example for fine-tuning, as files of the outside world spell it, and how its
// columns are recognised and read. Used by prepare_options.h and row_renderer.h. Pure: any thread.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <variant>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace espalier {

enum class RowFormat {
  kText,              // a text that is an example by itself, special tokens spelled out in it
  kPromptCompletion,  // a prompt and its completion
  kMessages,          // a conversation, as OpenAI writes it: [{"role": "user", "content": ...}]
  kShareGpt,          // the same as ShareGPT does: [{"from": "human", "value": ...}]
  kAlpaca,            // an instruction, perhaps with an input, and its output
  kOpenAssistant,  // a tree of messages (message_tree.h), of which the best conversation is taken
  kPrompts,        // a prompt to be completed, and a record for the verifier of completions
  kPreferences,    // a prompt with two answers, of which one was chosen and the other rejected
};
// As in the options of `data prepare`: "text-rows", "prompt-completion", "messages", "sharegpt",
// "alpaca", "openassistant", "prompts", "preferences".
absl::string_view RowFormatName(RowFormat format);

// Names of the columns.
struct RowFields {
  std::string text = "text";
  std::string prompt = "prompt";
  std::string completion = "completion";
  std::string record = "record";
  std::string messages = "messages";
  std::string conversations = "conversations";
};

struct TextRow {
  std::string text;  // not empty
};
struct PairRow {
  std::string prompt;      // may be empty
  std::string completion;  // not empty
};
struct InstructionRow {
  std::string system;  // may be empty, as may the input
  std::string instruction;
  std::string input;
  std::string output;  // not empty
};
struct ChatRow {
  // What a chat template is given: "messages", of which there is at least one, each an object with
  // a "role"; and "tools" where the row has them.
  nlohmann::ordered_json variables;
};
struct PromptRow {
  std::string prompt;  // not empty; special tokens are spelled out in it
  std::string record;  // an object, as JSON on one line
};
// Both are pairs, or both conversations that begin alike.
struct PreferenceRow {
  std::variant<PairRow, ChatRow> chosen;
  std::variant<PairRow, ChatRow> rejected;
};
using FineTuneRow =
    std::variant<TextRow, PairRow, InstructionRow, ChatRow, PromptRow, PreferenceRow>;

// The format whose columns the row has. INVALID_ARGUMENT when it has those of none, or of several,
// with the columns that it has.
absl::StatusOr<RowFormat> RecogniseRow(const nlohmann::ordered_json& row, const RowFields& fields);

// The row of an object, from which texts are moved. INVALID_ARGUMENT: a column is missing or of
// another type; FAILED_PRECONDITION (EmptyRow): there is nothing in it to learn.
absl::StatusOr<FineTuneRow> ParseRow(nlohmann::ordered_json object, RowFormat format,
                                     const RowFields& fields);

}  // namespace espalier
