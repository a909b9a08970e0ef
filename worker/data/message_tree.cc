#include "worker/data/message_tree.h"

#include <algorithm>
#include <limits>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/data/bad_rows.h"
#include "worker/data/json_lines.h"

namespace espalier {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMessagesMax = 65536;  // of a tree

// The text of a field; "" where it has none.
std::string Text(const Json& message, const char* key) {
  const auto found = message.find(key);
  return found != message.end() && found->is_string() ? found->get<std::string>() : "";
}

bool IsMessage(const Json& row) {
  return row.is_object() && row.contains("message_id") && row.contains("parent_id") &&
         row.contains("role") && row.contains("text");
}

bool IsWhole(const Json& row) {
  const auto prompt = row.is_object() ? row.find("prompt") : row.end();
  return prompt != row.end() && prompt->is_object() && prompt->contains("text") &&
         prompt->contains("replies");
}

struct Message {
  const Json* json;
  std::vector<size_t> replies;

  bool is_answer() const { return Text(*json, "role") == "assistant"; }
  bool is_deleted() const {
    const auto found = json->find("deleted");
    return found != json->end() && *found == true;
  }
  // The best is 0; those without one come last.
  double rank() const {
    const auto found = json->find("rank");
    return found != json->end() && found->is_number() ? found->get<double>()
                                                      : std::numeric_limits<double>::infinity();
  }
};

// Each message behind the one that it replies to.
absl::StatusOr<std::vector<Message>> FromNested(const Json& prompt) {
  std::vector<Message> messages = {{&prompt, {}}};
  for (size_t at = 0; at < messages.size(); ++at) {
    const auto replies = messages[at].json->find("replies");
    if (replies == messages[at].json->end() || !replies->is_array()) continue;
    for (const Json& reply : *replies) {
      if (!reply.is_object()) return absl::InvalidArgumentError("a reply is not an object");
      messages[at].replies.push_back(messages.size());
      messages.push_back({&reply, {}});
    }
  }
  return messages;
}

// The first one is the one that replies to none.
absl::StatusOr<std::vector<Message>> FromRows(const Json& rows) {
  std::vector<Message> messages;
  for (const Json& row : rows) messages.push_back({&row, {}});
  const auto first = std::find_if(messages.begin(), messages.end(), [](const Message& message) {
    return Text(*message.json, "parent_id").empty();
  });
  if (first == messages.end()) {
    return absl::InvalidArgumentError("each message of the tree has a 'parent_id'; one has none");
  }
  std::iter_swap(messages.begin(), first);
  std::unordered_map<std::string, size_t> places;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (places.emplace(Text(*messages[i].json, "message_id"), i).second) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("two messages of the tree have the message_id ",
                     Text(*messages[i].json, "message_id").substr(0, 80)));
  }
  for (size_t i = 1; i < messages.size(); ++i) {
    const auto parent = places.find(Text(*messages[i].json, "parent_id"));
    // One that was left out of the file is as one that was deleted.
    if (parent != places.end()) messages[parent->second].replies.push_back(i);
  }
  return messages;
}

// Of the replies to a message the one to go on with; 0: there is none.
size_t BestReply(const std::vector<Message>& messages, const Message& message) {
  const auto order = [&](size_t reply) {
    const Message& one = messages[reply];
    return std::pair(!one.is_answer() && one.replies.empty(), one.rank());
  };
  size_t best = 0;
  for (const size_t reply : message.replies) {
    if (messages[reply].is_deleted()) continue;
    if (best == 0 || order(reply) < order(best)) best = reply;
  }
  return best;
}

class JoinedMessages final : public RowSource {
 public:
  explicit JoinedMessages(std::unique_ptr<RowSource> rows) : rows_(std::move(rows)) {}

  absl::StatusOr<bool> Next(Json& row) override {
    for (;;) {
      if (pending_.is_null()) {
        const absl::StatusOr<bool> found = rows_->Next(pending_);
        if (!found.ok() || !*found) pending_ = Json();
        if (!found.ok()) return found.status();
        if (!*found) return Give(row);
      }
      if (!IsMessage(pending_)) {  // a tree, or something else that is told when it is parsed
        if (Give(row)) return true;
        row = std::exchange(pending_, Json());
        return true;
      }
      if (!tree_.empty() && !BelongsToTree(pending_)) return Give(row);
      if (tree_.size() >= kMessagesMax) {
        tree_.clear();
        return Error(absl::InvalidArgumentError(absl::StrCat(
            "the tree of messages has more than ", kMessagesMax, ", which are too many")));
      }
      tree_.push_back(std::exchange(pending_, Json()));
    }
  }
  absl::Status Error(const absl::Status& status) const override { return rows_->Error(status); }
  int64_t position() const override { return rows_->position(); }

 private:
  // Files that do not name the tree have its first message first.
  bool BelongsToTree(const Json& message) const {
    const std::string of = Text(message, "message_tree_id");
    return of.empty() ? !Text(message, "parent_id").empty()
                      : of == Text(tree_.back(), "message_tree_id");
  }
  // The tree that is done, if there is one.
  bool Give(Json& row) {
    if (tree_.empty()) return false;
    row = Json{{"tree", Json(std::exchange(tree_, {}))}};
    return true;
  }

  std::unique_ptr<RowSource> rows_;
  std::vector<Json> tree_;  // of the rows so far
  Json pending_;            // the row behind them; null: not read
};

}  // namespace

bool IsMessageTree(const Json& row) { return IsWhole(row) || IsMessage(row); }

std::unique_ptr<RowSource> JoinMessages(std::unique_ptr<RowSource> rows) {
  return std::make_unique<JoinedMessages>(std::move(rows));
}

absl::StatusOr<Json> BestConversation(const Json& tree) {
  const auto rows = tree.find("tree");
  if (rows == tree.end() && !IsWhole(tree)) {
    return absl::InvalidArgumentError(
        absl::StrCat("no tree of messages: neither 'prompt' with 'text' and 'replies', nor "
                     "'message_id', 'parent_id', 'role' and 'text' (the line has: ",
                     KeysOfObject(tree), ")"));
  }
  ASSIGN_OR_RETURN(const std::vector<Message> messages,
                   rows == tree.end() ? FromNested(tree["prompt"]) : FromRows(*rows));
  std::vector<const Message*> path;
  if (!messages[0].is_deleted()) path.push_back(&messages[0]);
  while (!path.empty()) {
    const size_t best = BestReply(messages, *path.back());
    if (best == 0) break;
    path.push_back(&messages[best]);
  }
  while (!path.empty() && !path.back()->is_answer()) path.pop_back();
  if (path.empty()) return EmptyRow("the tree of messages has no answer of the assistant");
  Json turns = Json::array();
  for (const Message* message : path) {
    turns.push_back(
        {{"from", Text(*message->json, "role")}, {"value", Text(*message->json, "text")}});
  }
  return turns;
}

}  // namespace espalier
