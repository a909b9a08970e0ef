#include "worker/tokenizer/open_tokenizer.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/file_system.h"
#include "common/base/status_macros.h"
#include "worker/formats/json_fields.h"
#include "worker/tokenizer/bpe_tokenizer.h"
#include "worker/tokenizer/sentencepiece_model.h"

namespace espalier {
namespace {

constexpr int64_t kJsonLimitBytes = int64_t{256} << 20;
constexpr int64_t kSmallLimitBytes = int64_t{16} << 20;
constexpr absl::string_view kName = "tokenizer.json";

absl::StatusOr<std::unique_ptr<Tokenizer>> FromJson(absl::string_view text,
                                                    BpeTokenizer::Surroundings surroundings) {
  const std::unique_ptr<Tokenizer> bytes = MakeByteTokenizer();
  const auto of_bytes = [&] {
    if (!surroundings.config_json.empty() || surroundings.chat_template.empty()) {
      return MakeByteTokenizer(std::move(surroundings.config_json));
    }
    auto config = nlohmann::ordered_json::parse(bytes->ConfigJson());
    config["chat_template"] = surroundings.chat_template;
    return MakeByteTokenizer(config.dump(1) + "\n");
  };
  if (text == bytes->Json()) return of_bytes();
  const absl::StatusOr<nlohmann::json> parsed = ParseJsonObject(text);
  if (!parsed.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("tokenizer.json: ", parsed.status().message(), "; is the file whole?"));
  }
  const nlohmann::json& json = *parsed;
  // Another tool may have written the same tokenizer with other spacing or key order.
  if (json == nlohmann::json::parse(bytes->Json())) return of_bytes();
  return BpeTokenizer::Open(std::string(text), json, std::move(surroundings));
}

// The text of a file; empty when there is none.
absl::StatusOr<std::string> ReadIfThere(const std::string& path) {
  absl::StatusOr<std::string> text = PosixFileSystem().Read(path, kSmallLimitBytes);
  if (absl::IsNotFound(text.status())) return std::string();
  return text;
}

// A token as tokenizer_config.json names it: a text, or an object with its content.
std::optional<std::string> TokenName(const nlohmann::json& config, const char* key) {
  const auto it = config.find(key);
  if (it == config.end()) return std::nullopt;
  if (it->is_string()) return it->get<std::string>();
  if (!it->is_object() || !it->contains("content") || !(*it)["content"].is_string()) {
    return std::nullopt;
  }
  return (*it)["content"].get<std::string>();
}

// The first of the ids that config.json says end a text.
std::optional<int32_t> EndId(const nlohmann::json& config) {
  const auto it = config.find("eos_token_id");
  if (it == config.end()) return std::nullopt;
  const nlohmann::json& id = it->is_array() && !it->empty() ? it->front() : *it;
  if (!id.is_number_integer() || id < 0 || id > INT32_MAX) return std::nullopt;
  return id.get<int32_t>();
}

bool Flag(const nlohmann::json& config, const char* key, bool absent) {
  const auto it = config.find(key);
  return it != config.end() && it->is_boolean() ? it->get<bool>() : absent;
}

// tokenizer.json of a folder, or what stands for its tokenizer.model.
absl::StatusOr<std::string> ReadTokenizerJson(const std::string& folder) {
  absl::StatusOr<std::string> text =
      PosixFileSystem().Read(absl::StrCat(folder, "/", kName), kJsonLimitBytes);
  if (!absl::IsNotFound(text.status())) return text;
  const absl::StatusOr<std::string> model =
      PosixFileSystem().Read(absl::StrCat(folder, "/tokenizer.model"), kJsonLimitBytes);
  if (!model.ok()) return absl::IsNotFound(model.status()) ? text.status() : model.status();
  ASSIGN_OR_RETURN(const std::string config_text, ReadIfThere(folder + "/tokenizer_config.json"));
  const auto config = ParseJsonObject(config_text);
  SentencePieceOptions options;
  if (config.ok()) {
    options.add_begin = Flag(*config, "add_bos_token", options.add_begin);
    options.add_end = Flag(*config, "add_eos_token", options.add_end);
    options.legacy = Flag(*config, "legacy", options.legacy);
    options.add_prefix_space = Flag(*config, "add_prefix_space", options.add_prefix_space);
  }
  absl::StatusOr<std::string> json = JsonOfSentencePiece(*model, options);
  if (json.ok()) return json;
  return absl::Status(json.status().code(),
                      absl::StrCat(folder, "/tokenizer.model: ", json.status().message()));
}

absl::StatusOr<BpeTokenizer::Surroundings> ReadSurroundings(const std::string& folder) {
  BpeTokenizer::Surroundings found;
  ASSIGN_OR_RETURN(found.chat_template, ReadIfThere(folder + "/chat_template.jinja"));
  if (!IsUtf8(found.chat_template)) {
    return absl::InvalidArgumentError("chat_template.jinja beside it is no UTF-8");
  }
  ASSIGN_OR_RETURN(found.config_json, ReadIfThere(folder + "/tokenizer_config.json"));
  if (!found.config_json.empty()) {
    ASSIGN_OR_RETURN(nlohmann::json config, ParseJsonObject(found.config_json));
    found.end = TokenName(config, "eos_token");
    // As in transformers, where a file of its own comes before what the config has.
    if (!found.chat_template.empty()) {
      config["chat_template"] = found.chat_template;
      found.config_json = config.dump(1) + "\n";
    }
  }
  ASSIGN_OR_RETURN(const std::string model_text, ReadIfThere(folder + "/config.json"));
  if (!model_text.empty()) {
    ASSIGN_OR_RETURN(const nlohmann::json model, ParseJsonObject(model_text));
    found.end_id = EndId(model);
  }
  return found;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> TokenizerFromJson(absl::string_view json) {
  return FromJson(json, {});
}

absl::StatusOr<std::unique_ptr<Tokenizer>> OpenTokenizer(const std::string& path) {
  const bool is_file = absl::EndsWith(path, ".json");
  const std::string file = is_file ? path : absl::StrCat(path, "/", kName);
  ASSIGN_OR_RETURN(const std::string text, is_file ? PosixFileSystem().Read(file, kJsonLimitBytes)
                                                   : ReadTokenizerJson(path));
  absl::StatusOr<BpeTokenizer::Surroundings> found = ReadSurroundings(ParentPath(file));
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer =
      found.ok() ? FromJson(text, *std::move(found)) : found.status();
  if (tokenizer.ok()) return tokenizer;
  return absl::Status(tokenizer.status().code(),
                      absl::StrCat(file, ": ", tokenizer.status().message()));
}

}  // namespace espalier
