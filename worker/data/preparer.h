// Preparer: sends documents or examples to the splits of a folder in progress. Used by prepare.cc
// alone. One thread; once.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/data/bad_rows.h"
#include "worker/data/document_reader.h"
#include "worker/data/input_files.h"
#include "worker/data/prepare_options.h"
#include "worker/data/row_renderer.h"
#include "worker/data/row_source.h"
#include "worker/data/shard_writer.h"

namespace espalier {

// What is done with rows, from the options and, where these leave it open, the first row.
struct RowPlan {
  DataKind kind = DataKind::kText;
  std::optional<RowFormat> format;  // absent: the input is text
  RowRenderer::Options render;
};
// INVALID_ARGUMENT when the format cannot be told, or has no completions and only these are to
// count.
absl::StatusOr<RowPlan> PlanRows(const PrepareOptions& options, const InputFiles& input);

class Preparer {
 public:
  struct Parts {
    const Tokenizer& tokenizer;
    const PrepareOptions& options;
    const RowPlan& plan;
    const RowRenderer* renderer;  // of rows alone
  };
  Preparer(FileSystem& files, const Parts& parts, const std::string& folder);

  // Reads all, and writes all shards.
  absl::Status Run(const InputFiles& train, const InputFiles& validation);
  TokenManifest Manifest() const;

 private:
  SplitWriter::Options Writer(const char* name, const std::string& folder) const;
  absl::Status AddFile(const InputFile& file);
  absl::Status AddDocuments(const InputFile& file);
  absl::Status AddPiece(const DocumentPiece& piece, int64_t position, bool whole_document);
  absl::Status AddRows(const InputFile& file);
  absl::StatusOr<RenderedRow> Rendered(const RowSource& source,
                                       nlohmann::ordered_json object) const;
  absl::Status AddRow(const RenderedRow& row, int64_t position);
  absl::Status Encode(absl::string_view text);
  absl::Status EndDocument();
  void HoldOutByHash(const std::vector<absl::string_view>& texts);
  void ReportNowAndThen(int64_t position);
  void Report() const;
  absl::Status CheckSplits() const;

  const Parts parts_;
  const BadRows bad_rows_;
  SplitBy split_by_ = SplitBy::kAuto;
  SplitWriter train_;
  SplitWriter validation_;
  SplitWriter* writer_ = nullptr;  // the one that gets the current document
  std::vector<int32_t> ids_;
  int64_t tail_begin_ = 0;
  int64_t file_begin_ = 0;
  int64_t source_bytes_ = 0;
  RowCounts rows_;
  PrepareProgress progress_;
};

}  // namespace espalier
