#include "worker/formats/tokenizer.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/base/file_system.h"
#include "common/base/status_macros.h"

namespace espalier {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr int32_t kBytes = 256;
constexpr char kEndOfText[] = "<|endoftext|>";
constexpr int64_t kJsonLimitBytes = int64_t{256} << 20;

// GPT-2's printable stand-in of a byte: itself where it is printable Latin-1, else the next code
// point from U+0100 on.
int CodePoint(int byte) {
  const auto printable = [](int b) {
    return (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || (b >= 0xae && b <= 0xff);
  };
  if (printable(byte)) return byte;
  int code_point = 0x100;
  for (int b = 0; b < byte; ++b) code_point += printable(b) ? 0 : 1;
  return code_point;
}

// UTF-8 of a code point below U+0800.
std::string Utf8(int code_point) {
  if (code_point < 0x80) return std::string(1, static_cast<char>(code_point));
  return {static_cast<char>(0xc0 | (code_point >> 6)),
          static_cast<char>(0x80 | (code_point & 0x3f))};
}

class ByteTokenizer final : public Tokenizer {
 public:
  absl::string_view kind() const override { return "byte"; }
  int64_t vocab_size() const override { return kBytes + 1; }
  int32_t end_of_text() const override { return kBytes; }

  void Encode(absl::string_view text, std::vector<int32_t>& ids) const override {
    ids.reserve(ids.size() + text.size());
    for (const char c : text) ids.push_back(static_cast<uint8_t>(c));
  }

  absl::StatusOr<std::string> Decode(absl::Span<const int32_t> ids) const override {
    std::string text;
    text.reserve(ids.size());
    for (const int32_t id : ids) {
      if (id < 0 || id > kBytes) {
        return absl::InvalidArgumentError(
            absl::StrCat("token id ", id,
                         " is outside the byte tokenizer's vocabulary; allowed: 0 to ", kBytes));
      }
      if (id < kBytes) text.push_back(static_cast<char>(id));
    }
    return text;
  }

  std::string Json() const override {
    OrderedJson vocab = OrderedJson::object();
    for (int byte = 0; byte < kBytes; ++byte) vocab[Utf8(CodePoint(byte))] = byte;
    vocab[kEndOfText] = kBytes;
    const auto byte_level = [](bool use_regex) -> OrderedJson {
      return {{"type", "ByteLevel"},
              {"add_prefix_space", false},
              {"trim_offsets", true},
              {"use_regex", use_regex}};
    };
    const OrderedJson tokenizer = {
        {"version", "1.0"},
        {"truncation", nullptr},
        {"padding", nullptr},
        {"added_tokens", OrderedJson::array({{{"id", kBytes},
                                              {"content", kEndOfText},
                                              {"single_word", false},
                                              {"lstrip", false},
                                              {"rstrip", false},
                                              {"normalized", false},
                                              {"special", true}}})},
        {"normalizer", nullptr},
        {"pre_tokenizer", byte_level(true)},
        {"post_processor", nullptr},
        {"decoder", byte_level(true)},
        {"model",
         {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", nullptr},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", false},
          {"byte_fallback", false},
          {"ignore_merges", false},
          {"vocab", vocab},
          {"merges", OrderedJson::array()}}},
    };
    return tokenizer.dump(1) + "\n";
  }

  std::string ConfigJson() const override {
    const OrderedJson config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                                {"eos_token", kEndOfText},
                                {"clean_up_tokenization_spaces", false}};
    return config.dump(1) + "\n";
  }
};

}  // namespace

std::unique_ptr<Tokenizer> MakeByteTokenizer() { return std::make_unique<ByteTokenizer>(); }

absl::StatusOr<std::unique_ptr<Tokenizer>> TokenizerFromJson(absl::string_view text) {
  std::unique_ptr<Tokenizer> bytes = MakeByteTokenizer();
  if (text == bytes->Json()) return bytes;
  const OrderedJson json =
      OrderedJson::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return absl::InvalidArgumentError("tokenizer.json is not a JSON object; is the file whole?");
  }
  // Another tool may have written the same tokenizer with other spacing or key order.
  using Unordered = nlohmann::json;
  if (Unordered(json) == Unordered(OrderedJson::parse(bytes->Json()))) return bytes;
  const auto model = json.find("model");
  std::string type = "unknown";
  size_t size = 0;
  if (model != json.end() && model->is_object()) {
    if (model->contains("type") && (*model)["type"].is_string()) {
      type = (*model)["type"].get<std::string>();
    }
    if (model->contains("vocab")) size = (*model)["vocab"].size();
  }
  return absl::UnimplementedError(
      absl::StrCat("tokenizer.json holds a ", type, " tokenizer with ", size,
                   " entries; supported: the byte tokenizer that `espalier data prepare` writes"));
}

absl::StatusOr<std::unique_ptr<Tokenizer>> OpenTokenizer(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/tokenizer.json");
  ASSIGN_OR_RETURN(const std::string text, PosixFileSystem().Read(path, kJsonLimitBytes));
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = TokenizerFromJson(text);
  if (tokenizer.ok()) return tokenizer;
  return absl::Status(tokenizer.status().code(),
                      absl::StrCat(path, ": ", tokenizer.status().message()));
}

}  // namespace espalier
