// JsonLines: the lines of a JSONL file as objects, with errors that name file and line. Used by
// document_reader.cc, fine_tune_row.cc, preparer.cc and worker/reward. One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/data/input_files.h"
#include "worker/data/row_source.h"

namespace espalier {

class JsonLines final : public RowSource {
 public:
  explicit JsonLines(ForwardFile file) : file_(std::move(file)) {}

  // Of the next line that is not blank. INVALID_ARGUMENT: it is no JSON object, or one of a shape
  // that nobody writes (CheckShape). RESOURCE_EXHAUSTED: it is longer than 256 MiB, and the file
  // cannot be read further.
  absl::StatusOr<bool> Next(nlohmann::ordered_json& value) override;
  absl::Status Error(const absl::Status& status) const override;
  int64_t position() const override { return position_; }

 private:
  absl::StatusOr<bool> NextLine();

  ForwardFile file_;
  absl::string_view line_;
  int64_t position_ = 0;
  int64_t line_number_ = 0;
};

// By the file's name. INVALID_ARGUMENT when that is not of JSONL; UNIMPLEMENTED for Parquet.
absl::StatusOr<std::unique_ptr<RowSource>> OpenRows(const InputFile& file);

// Moves the text of a field out of the object. INVALID_ARGUMENT when there is none; `advice` says
// what to do then.
absl::StatusOr<std::string> TakeText(nlohmann::ordered_json& object, const std::string& field,
                                     absl::string_view advice);

// "'id', 'text'": the keys of an object for a message, as far as 200 bytes.
std::string KeysOfObject(const nlohmann::ordered_json& object);

}  // namespace espalier
