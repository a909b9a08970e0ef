#include "worker/tokenizer/bpe_tokenizer.h"

#include <algorithm>
#include <atomic>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/formats/json_fields.h"
#include "worker/tokenizer/word_cache.h"

namespace espalier {
namespace {

constexpr int kDepthMax = 8;

uint32_t NextNumber() {
  static std::atomic<uint32_t> last{0};
  return ++last;
}

WordCache& ThreadCache() {
  static thread_local WordCache cache;
  return cache;
}

// null for a key that is absent.
const nlohmann::json& Part(const nlohmann::json& json, const char* key) {
  static const nlohmann::json& null = *new nlohmann::json();
  const auto it = json.find(key);
  return it == json.end() ? null : *it;
}

}  // namespace

BpeTokenizer::BpeTokenizer(PreTokenizer pre_tokenizer, BpeModel model, TokenPieces pieces)
    : Tokenizer("bpe", pieces.drops_first_space()),
      number_(NextNumber()),
      pre_tokenizer_(std::move(pre_tokenizer)),
      model_(std::move(model)),
      pieces_(std::move(pieces)) {}

absl::StatusOr<std::unique_ptr<Tokenizer>> BpeTokenizer::Open(std::string text,
                                                              const nlohmann::json& json,
                                                              Surroundings surroundings) {
  // Pieces before they are assembled, so that the model's kind is named before its parts.
  PreTokenizer pre_tokenizer;
  const absl::Status status = [&] {
    ASSIGN_OR_RETURN(pre_tokenizer, PreTokenizer::FromJson(Part(json, "pre_tokenizer")));
    return absl::OkStatus();
  }();
  ASSIGN_OR_RETURN(BpeModel model,
                   BpeModel::FromJson(Part(json, "model"), pre_tokenizer.byte_level()));
  RETURN_IF_ERROR(status);
  ASSIGN_OR_RETURN(TokenPieces pieces, TokenPieces::FromJson(Part(json, "decoder")));
  std::unique_ptr<BpeTokenizer> tokenizer(
      new BpeTokenizer(std::move(pre_tokenizer), std::move(model), std::move(pieces)));
  tokenizer->json_ = std::move(text);
  RETURN_IF_ERROR(tokenizer->TakeTokens(json));
  RETURN_IF_ERROR(tokenizer->TakeFrame(Part(json, "post_processor"), 0));
  RETURN_IF_ERROR(tokenizer->TakeEnd(surroundings));
  tokenizer->config_json_ = std::move(surroundings.config_json);
  if (tokenizer->config_json_.empty()) {
    nlohmann::ordered_json config = {
        {"tokenizer_class", "PreTrainedTokenizerFast"},
        {"eos_token", WithReplacements(tokenizer->pieces_.piece(tokenizer->end_))},
        {"clean_up_tokenization_spaces", false}};
    if (!surroundings.chat_template.empty()) {
      config["chat_template"] = surroundings.chat_template;
    }
    tokenizer->config_json_ = config.dump(1) + "\n";
  }
  return std::unique_ptr<Tokenizer>(std::move(tokenizer));
}

absl::Status BpeTokenizer::TakeTokens(const nlohmann::json& json) {
  ASSIGN_OR_RETURN(normalizer_, Normalizer::FromJson(Part(json, "normalizer")));
  ASSIGN_OR_RETURN(added_, AddedTokens::FromJson(Part(json, "added_tokens"), normalizer_));
  int32_t last = -1;
  for (const auto& [token, id] : model_.vocabulary()) last = std::max(last, id);
  for (const AddedToken& token : added_.all()) last = std::max(last, token.id);
  if (last < 0) return absl::InvalidArgumentError("the vocabulary is empty");
  pieces_.Add(last, "");
  special_.resize(static_cast<size_t>(last) + 1);
  for (const auto& [token, id] : model_.vocabulary()) pieces_.Add(id, token);
  for (const AddedToken& token : added_.all()) {
    pieces_.Add(token.id, token.content);
    special_[static_cast<size_t>(token.id)] = token.special;
  }
  return absl::OkStatus();
}

absl::Status BpeTokenizer::TakeFrame(const nlohmann::json& json, int depth) {
  if (json.is_null()) return absl::OkStatus();
  if (!json.is_object() || depth > kDepthMax) {
    return absl::InvalidArgumentError("'post_processor' is not an object");
  }
  ASSIGN_OR_RETURN(const std::string type, StringField(json, "type"));
  if (type == "ByteLevel") return absl::OkStatus();  // changes offsets only
  if (type == "Sequence") {
    ASSIGN_OR_RETURN(const nlohmann::json* list, ArrayField(json, "processors"));
    for (const nlohmann::json& one : *list) RETURN_IF_ERROR(TakeFrame(one, depth + 1));
    return absl::OkStatus();
  }
  if (type != "TemplateProcessing") {
    return absl::UnimplementedError(absl::StrCat("the post-processor '", type.substr(0, 40),
                                                 "' is not supported; supported: Sequence, "
                                                 "ByteLevel, TemplateProcessing"));
  }
  ASSIGN_OR_RETURN(const nlohmann::json* parts, ArrayField(json, "single"));
  ASSIGN_OR_RETURN(const nlohmann::json* tokens, ObjectField(json, "special_tokens"));
  std::vector<int32_t> before, behind;
  bool text_seen = false;
  for (const nlohmann::json& part : *parts) {
    if (part.is_object() && part.contains("Sequence") && !text_seen) {
      text_seen = true;
      continue;
    }
    const bool token = part.is_object() && part.contains("SpecialToken");
    if (!token) return absl::InvalidArgumentError("'post_processor.single' frames no single text");
    ASSIGN_OR_RETURN(const std::string name, StringField(part["SpecialToken"], "id"));
    ASSIGN_OR_RETURN(const nlohmann::json* known, ObjectField(*tokens, name));
    ASSIGN_OR_RETURN(const nlohmann::json* ids, ArrayField(*known, "ids"));
    for (const nlohmann::json& id : *ids) {
      if (!id.is_number_integer() || id < 0 || id >= vocab_size()) {
        return absl::InvalidArgumentError(absl::StrCat("'post_processor' adds the id ", id.dump(),
                                                       ", which is outside the vocabulary of ",
                                                       vocab_size()));
      }
      (text_seen ? behind : before).push_back(id.get<int32_t>());
    }
  }
  before_.insert(before_.begin(), before.begin(), before.end());
  behind_.insert(behind_.end(), behind.begin(), behind.end());
  return absl::OkStatus();
}

absl::Status BpeTokenizer::TakeEnd(const Surroundings& surroundings) {
  if (surroundings.end) {
    const auto id = IdOf(*surroundings.end);
    if (id) {
      end_ = *id;
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(absl::StrCat("tokenizer_config.json: eos_token is '",
                                                   surroundings.end->substr(0, 80),
                                                   "', which the vocabulary does not have"));
  }
  if (surroundings.end_id && *surroundings.end_id >= 0 && *surroundings.end_id < vocab_size()) {
    end_ = *surroundings.end_id;
    return absl::OkStatus();
  }
  for (const char* name : {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>"}) {
    if (const auto id = IdOf(name)) {
      end_ = *id;
      return absl::OkStatus();
    }
  }
  return absl::InvalidArgumentError(
      "no token is known to end a text; name one as eos_token in tokenizer_config.json beside "
      "tokenizer.json");
}

std::optional<int32_t> BpeTokenizer::IdOf(absl::string_view token) const {
  for (const AddedToken& added : added_.all()) {
    if (added.content == token) return added.id;
  }
  const auto it = model_.vocabulary().find(token);
  if (it == model_.vocabulary().end()) return std::nullopt;
  return it->second;
}

TokenKind BpeTokenizer::KindOf(int32_t id) const {
  if (id < 0 || id >= vocab_size()) return TokenKind::kText;
  if (special_[static_cast<size_t>(id)]) return TokenKind::kSpecial;
  return pieces_.is_byte(id) ? TokenKind::kByteFallback : TokenKind::kText;
}

absl::StatusOr<absl::string_view> BpeTokenizer::Piece(int32_t id) const {
  if (id >= 0 && id < vocab_size()) return pieces_.piece(id);
  return absl::InvalidArgumentError(absl::StrCat("token id ", id,
                                                 " is outside the tokenizer's vocabulary; ",
                                                 "allowed: 0 to ", vocab_size() - 1));
}

absl::StatusOr<std::string> BpeTokenizer::FirstPiece(int32_t id) const {
  RETURN_IF_ERROR(Piece(id).status());
  return pieces_.first_piece(id);
}

absl::Status BpeTokenizer::EncodeWords(absl::string_view text, TextStart start,
                                       std::vector<int32_t>& ids) const {
  WordCache& cache = ThreadCache();
  return pre_tokenizer_.ForEachWord(text, start, [&](absl::string_view word) -> absl::Status {
    if (word.size() > WordCache::kWordBytesMax) return model_.EncodeWord(word, ids);
    if (const auto known = cache.Find(number_, word)) {
      ids.insert(ids.end(), known->begin(), known->end());
      return absl::OkStatus();
    }
    const size_t before = ids.size();
    RETURN_IF_ERROR(model_.EncodeWord(word, ids));
    cache.Keep(number_, word, absl::MakeConstSpan(ids).subspan(before));
    return absl::OkStatus();
  });
}

absl::Status BpeTokenizer::EncodeRaw(absl::string_view text, TextStart start, bool special,
                                     std::vector<int32_t>& ids) const {
  std::string normalized;
  if (!normalizer_.empty()) {
    ASSIGN_OR_RETURN(normalized, normalizer_.Apply(text, start));
    text = normalized;
  }
  return added_.ForEachPart(
      text, AddedTokens::Stage::kNormalized, special, [&](const AddedTokens::Part& part) {
        const TextStart of_part = std::exchange(start, TextStart::kAfterToken);
        if (part.token == nullptr) return EncodeWords(part.text, of_part, ids);
        ids.push_back(part.token->id);
        return absl::OkStatus();
      });
}

absl::Status BpeTokenizer::Encode(absl::string_view text, std::vector<int32_t>& ids,
                                  EncodeOptions options) const {
  if (options.frame) ids.insert(ids.end(), before_.begin(), before_.end());
  TextStart start = options.start;
  RETURN_IF_ERROR(added_.ForEachPart(
      text, AddedTokens::Stage::kRaw, options.special_tokens, [&](const AddedTokens::Part& part) {
        const TextStart of_part = std::exchange(start, TextStart::kAfterToken);
        if (part.token == nullptr) {
          return EncodeRaw(part.text, of_part, options.special_tokens, ids);
        }
        ids.push_back(part.token->id);
        return absl::OkStatus();
      }));
  if (options.frame) ids.insert(ids.end(), behind_.begin(), behind_.end());
  return absl::OkStatus();
}

}  // namespace espalier
