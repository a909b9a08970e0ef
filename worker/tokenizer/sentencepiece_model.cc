#include "worker/tokenizer/sentencepiece_model.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/tokenizer/unicode_text.h"
#include "worker/tokenizer/wire_fields.h"

namespace espalier {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr char kMark[] = "▁";  // stands for a space
constexpr size_t kPiecesMax = size_t{1} << 22;
constexpr size_t kPieceBytesMax = 1024;

enum class PieceType { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kByte = 6 };

struct Piece {
  std::string text;
  float score = 0;
  PieceType type = PieceType::kNormal;
};

// What SentencePiece calls ModelProto, with its defaults.
struct Model {
  std::vector<Piece> pieces;
  uint64_t kind = 1;  // unigram, bpe, word, char
  bool byte_fallback = false;
  uint64_t unknown_id = 0, begin_id = 1, end_id = 2;
  bool dummy_prefix = true, remove_extra_spaces = true, escape_spaces = true;
  bool has_rules = false;  // of normalization
};

// Calls take(field) for every field of a message.
template <typename Take>
absl::Status ForEachField(absl::string_view message, Take take) {
  WireFields fields(message);
  for (;;) {
    ASSIGN_OR_RETURN(const auto field, fields.Next());
    if (!field) return absl::OkStatus();
    RETURN_IF_ERROR(take(*field));
  }
}

absl::Status TakePiece(absl::string_view message, Model& model) {
  Piece piece;
  RETURN_IF_ERROR(ForEachField(message, [&](const WireFields::Field& field) {
    if (field.number == 1) piece.text = std::string(field.bytes);
    if (field.number == 2 && field.is_fixed32) piece.score = field.real();
    if (field.number == 3) piece.type = static_cast<PieceType>(field.integer & 7);
    return absl::OkStatus();
  }));
  if (model.pieces.size() >= kPiecesMax || piece.text.empty() ||
      piece.text.size() > kPieceBytesMax || !IsUtf8(piece.text)) {
    return absl::InvalidArgumentError(absl::StrCat("piece ", model.pieces.size(),
                                                   " is empty, too long or no UTF-8, or there are ",
                                                   "over ", kPiecesMax));
  }
  model.pieces.push_back(std::move(piece));
  return absl::OkStatus();
}

absl::Status TakeTrainer(absl::string_view message, Model& model) {
  return ForEachField(message, [&](const WireFields::Field& field) {
    if (field.number == 3) model.kind = field.integer;
    if (field.number == 35) model.byte_fallback = field.integer != 0;
    if (field.number == 40) model.unknown_id = field.integer;
    if (field.number == 41) model.begin_id = field.integer;
    if (field.number == 42) model.end_id = field.integer;
    return absl::OkStatus();
  });
}

absl::Status TakeNormalizer(absl::string_view message, Model& model) {
  return ForEachField(message, [&](const WireFields::Field& field) {
    if (field.number == 2) model.has_rules = !field.bytes.empty();
    if (field.number == 3) model.dummy_prefix = field.integer != 0;
    if (field.number == 4) model.remove_extra_spaces = field.integer != 0;
    if (field.number == 5) model.escape_spaces = field.integer != 0;
    return absl::OkStatus();
  });
}

absl::StatusOr<Model> ParseModel(absl::string_view bytes) {
  Model model;
  RETURN_IF_ERROR(ForEachField(bytes, [&](const WireFields::Field& field) {
    if (field.number == 1) return TakePiece(field.bytes, model);
    if (field.number == 2) return TakeTrainer(field.bytes, model);
    if (field.number == 3) return TakeNormalizer(field.bytes, model);
    return absl::OkStatus();
  }));
  if (model.pieces.empty()) return absl::InvalidArgumentError("it has no pieces");
  if (model.unknown_id >= model.pieces.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("its unknown token ", model.unknown_id, " is none of ", model.pieces.size()));
  }
  return model;
}

absl::Status CheckSupported(const Model& model) {
  static constexpr absl::string_view kKinds[] = {"none", "unigram", "bpe", "word", "char"};
  if (model.kind != 2) {
    return absl::UnimplementedError(absl::StrCat(
        "it is of the kind ", model.kind < 5 ? kKinds[model.kind] : "unknown", "; supported: bpe"));
  }
  if (model.has_rules || model.remove_extra_spaces || !model.escape_spaces) {
    return absl::UnimplementedError(
        "it has rules of normalization, or removes spaces; supported: the rule `identity` that "
        "keeps all spaces, as Llama 2, Mistral and Gemma have it");
  }
  return absl::OkStatus();
}

// Every way in which two pieces become a third, the best of those first.
OrderedJson MergesOf(const Model& model) {
  absl::flat_hash_map<absl::string_view, size_t> mergeable;
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    if (model.pieces[id].type == PieceType::kNormal) mergeable[model.pieces[id].text] = id;
  }
  struct Merge {
    float score;
    size_t id;
    absl::string_view left, right;
  };
  std::vector<Merge> merges;
  for (const auto& [text, id] : mergeable) {
    for (size_t cut = FirstCodePoint(text).bytes; cut < text.size();
         cut += FirstCodePoint(text.substr(cut)).bytes) {
      const absl::string_view left = text.substr(0, cut), right = text.substr(cut);
      if (!mergeable.contains(left) || !mergeable.contains(right)) continue;
      merges.push_back({model.pieces[id].score, id, left, right});
    }
  }
  std::sort(merges.begin(), merges.end(), [](const Merge& a, const Merge& b) {
    if (a.score != b.score) return a.score > b.score;
    return a.id != b.id ? a.id < b.id : a.left.size() < b.left.size();
  });
  OrderedJson json = OrderedJson::array();
  for (const Merge& merge : merges) {
    json.push_back({std::string(merge.left), std::string(merge.right)});
  }
  return json;
}

// Tokens of the user's are looked for among marked spaces, as Gemma's are made of them; but not
// where marks come before texts, since such a mark would be taken for a part of the token.
OrderedJson AddedTokensOf(const Model& model) {
  OrderedJson added = OrderedJson::array();
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    const Piece& piece = model.pieces[id];
    const bool special = piece.type == PieceType::kControl || piece.type == PieceType::kUnknown;
    if (!special && piece.type != PieceType::kUserDefined) continue;
    added.push_back({{"id", id},
                     {"content", piece.text},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", !special && !model.dummy_prefix},
                     {"special", special}});
  }
  return added;
}

OrderedJson FrameOf(const Model& model, SentencePieceOptions options) {
  OrderedJson parts = OrderedJson::array(), tokens = OrderedJson::object();
  const auto add = [&](bool wanted, uint64_t id) {
    if (!wanted || id >= model.pieces.size()) return;
    const std::string& name = model.pieces[id].text;
    parts.push_back({{"SpecialToken", {{"id", name}, {"type_id", 0}}}});
    tokens[name] = {
        {"id", name}, {"ids", OrderedJson::array({id})}, {"tokens", OrderedJson::array({name})}};
  };
  add(options.add_begin, model.begin_id);
  parts.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
  add(options.add_end, model.end_id);
  return {{"type", "TemplateProcessing"},
          {"single", parts},
          {"pair", OrderedJson::array({{{"Sequence", {{"id", "A"}, {"type_id", 0}}}},
                                       {{"Sequence", {{"id", "B"}, {"type_id", 1}}}}})},
          {"special_tokens", tokens}};
}

OrderedJson Replace(const char* from, const char* to) {
  return {{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}};
}

// `prefix`: a mark before every text, also before one behind an added token.
OrderedJson MarkingNormalizer(bool prefix) {
  OrderedJson steps = OrderedJson::array();
  if (prefix) steps.push_back({{"type", "Prepend"}, {"prepend", kMark}});
  steps.push_back(Replace(" ", kMark));
  return {{"type", "Sequence"}, {"normalizers", steps}};
}

// `prefix`: a mark where the whole text begins.
OrderedJson MarkingPreTokenizer(bool prefix) {
  return {{"type", "Metaspace"},
          {"replacement", kMark},
          {"prepend_scheme", prefix ? "first" : "never"},
          {"split", false}};
}

}  // namespace

absl::StatusOr<std::string> JsonOfSentencePiece(absl::string_view bytes,
                                                SentencePieceOptions options) {
  ASSIGN_OR_RETURN(const Model model, ParseModel(bytes));
  RETURN_IF_ERROR(CheckSupported(model));
  const bool prefix = model.dummy_prefix && options.add_prefix_space;
  OrderedJson::object_t vocabulary;  // pushed to, since looking keys up takes linear time
  OrderedJson decoders =
      OrderedJson::array({Replace(kMark, " "), {{"type", "ByteFallback"}}, {{"type", "Fuse"}}});
  if (prefix) {
    decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  }
  // Gemma's are never marked before texts, and have no other behaviour.
  const bool by_normalizer = options.legacy || !model.dummy_prefix;
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    vocabulary.push_back({model.pieces[id].text, id});
  }
  const OrderedJson json = {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", AddedTokensOf(model)},
      {"normalizer", by_normalizer ? MarkingNormalizer(prefix) : OrderedJson()},
      {"pre_tokenizer", by_normalizer ? OrderedJson() : MarkingPreTokenizer(prefix)},
      {"post_processor", FrameOf(model, options)},
      {"decoder", {{"type", "Sequence"}, {"decoders", decoders}}},
      {"model",
       {{"type", "BPE"},
        {"dropout", nullptr},
        {"unk_token", model.pieces[model.unknown_id].text},
        {"continuing_subword_prefix", nullptr},
        {"end_of_word_suffix", nullptr},
        {"fuse_unk", true},
        {"byte_fallback", model.byte_fallback},
        {"ignore_merges", false},
        {"vocab", vocabulary},
        {"merges", MergesOf(model)}}}};
  return json.dump(1) + "\n";
}

}  // namespace espalier
