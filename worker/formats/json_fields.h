// Reads the fields of a JSON object with errors that name the field: those that must be there, as
// in manifests, and those that may be left out, as in config.json. Used by token_manifest.cc,
// shard_reader.cc, decoder_config_json.cc, pretrained.cc, worker/tokenizer, worker/chat and the
// checkpoints of worker/state. One thread.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace espalier {

// The object that `text` holds. INVALID_ARGUMENT for anything else; never throws.
absl::StatusOr<nlohmann::json> ParseJsonObject(absl::string_view text);

// INVALID_ARGUMENT "'tokens' is missing", "'tokens' must be an integer from 0 to 2^53, got -1".
absl::StatusOr<int64_t> IntegerField(const nlohmann::json& object, const std::string& name);
absl::StatusOr<std::string> StringField(const nlohmann::json& object, const std::string& name);
absl::StatusOr<const nlohmann::json*> ArrayField(const nlohmann::json& object,
                                                 const std::string& name);
absl::StatusOr<const nlohmann::json*> ObjectField(const nlohmann::json& object,
                                                  const std::string& name);

// Fields that may be absent or null: `absent` stands for them. The first that has a wrong type is
// kept as the status; what is read after it does not matter.
class JsonKeys {
 public:
  // `object` must outlive this. Messages name `file` and the key behind `prefix` ("rope_scaling.").
  JsonKeys(const nlohmann::json& object, std::string file, std::string prefix = "")
      : object_(object), file_(std::move(file)), prefix_(std::move(prefix)) {}

  // nullptr when the key is absent or null.
  const nlohmann::json* Find(const char* key) const;
  int64_t Integer(const char* key, int64_t absent);
  double Real(const char* key, double absent);
  bool Flag(const char* key, bool absent);
  std::string Text(const char* key, absl::string_view absent);
  // INVALID_ARGUMENT when the key is absent.
  void Require(const char* key);
  // "config.json: KEY is VALUE; it must be ALLOWED".
  void Wrong(const char* key, absl::string_view allowed);
  const absl::Status& status() const { return status_; }

 private:
  void Fail(std::string message);
  const nlohmann::json& object_;
  std::string file_;
  std::string prefix_;
  absl::Status status_;
};

// A plain file name: not empty, not "." or "..", no '/' or NUL. INVALID_ARGUMENT otherwise.
absl::Status CheckPlainFileName(absl::string_view name);
// 64 lower-case hex digits. INVALID_ARGUMENT otherwise.
absl::Status CheckSha256Text(absl::string_view text);

}  // namespace espalier
