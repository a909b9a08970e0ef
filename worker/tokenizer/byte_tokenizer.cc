#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/tokenizer/byte_letters.h"
#include "worker/tokenizer/tokenizer.h"

namespace espalier {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr int32_t kBytes = 256;
constexpr absl::string_view kEndOfText = "<|endoftext|>";

class ByteTokenizer final : public Tokenizer {
 public:
  explicit ByteTokenizer(std::string config_json)
      : Tokenizer("byte"), config_json_(std::move(config_json)) {}
  int64_t vocab_size() const override { return kBytes + 1; }
  int32_t end_of_text() const override { return kBytes; }

  std::optional<int32_t> IdOf(absl::string_view token) const override {
    if (token == kEndOfText) return kBytes;
    const auto byte = BytesOfLetters(token);
    if (!byte || byte->size() != 1) return std::nullopt;
    return static_cast<uint8_t>(byte->front());
  }
  TokenKind KindOf(int32_t id) const override {
    return id == kBytes ? TokenKind::kSpecial : TokenKind::kText;
  }

  absl::Status Encode(absl::string_view text, std::vector<int32_t>& ids,
                      EncodeOptions options) const override {
    ids.reserve(ids.size() + text.size());
    while (!text.empty()) {
      const size_t special = options.special_tokens ? text.find(kEndOfText) : text.npos;
      for (const char c : text.substr(0, special)) ids.push_back(static_cast<uint8_t>(c));
      if (special == text.npos) break;
      ids.push_back(kBytes);
      text.remove_prefix(special + kEndOfText.size());
    }
    return absl::OkStatus();
  }

  absl::StatusOr<absl::string_view> Piece(int32_t id) const override {
    if (id == kBytes) return kEndOfText;
    if (id >= 0 && id < kBytes) return absl::string_view(&bytes_[static_cast<size_t>(id)], 1);
    return absl::InvalidArgumentError(absl::StrCat(
        "token id ", id, " is outside the byte tokenizer's vocabulary; allowed: 0 to ", kBytes));
  }

  std::string Json() const override {
    OrderedJson vocab = OrderedJson::object();
    for (int byte = 0; byte < kBytes; ++byte) vocab[ByteLetter(static_cast<uint8_t>(byte))] = byte;
    vocab[std::string(kEndOfText)] = kBytes;
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
                                              {"content", std::string(kEndOfText)},
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
    if (!config_json_.empty()) return config_json_;
    const OrderedJson config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                                {"eos_token", std::string(kEndOfText)},
                                {"clean_up_tokenization_spaces", false}};
    return config.dump(1) + "\n";
  }

 private:
  static std::array<char, kBytes> AllBytes() {
    std::array<char, kBytes> bytes;
    for (size_t byte = 0; byte < bytes.size(); ++byte) bytes[byte] = static_cast<char>(byte);
    return bytes;
  }
  const std::array<char, kBytes> bytes_ = AllBytes();
  const std::string config_json_;
};

}  // namespace

std::unique_ptr<Tokenizer> MakeByteTokenizer(std::string config_json) {
  return std::make_unique<ByteTokenizer>(std::move(config_json));
}

}  // namespace espalier
