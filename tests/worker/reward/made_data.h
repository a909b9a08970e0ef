// What a maker of data wrote, read back. Used by tests/worker/reward. One thread.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "common/base/file_system.h"
#include "tests/worker/support/test_folder.h"
#include "worker/reward/data_writer.h"

namespace espalier {

using JsonRow = nlohmann::ordered_json;

// The folder NAME that `make` writes.
inline absl::Status MakeData(const TestFolder& folder, const std::string& name,
                             const std::function<absl::Status(DataWriter&)>& make) {
  absl::StatusOr<DataWriter> writer = DataWriter::Create(PosixFileSystem(), folder / name);
  if (!writer.ok()) return writer.status();
  const absl::Status made = make(*writer);
  return made.ok() ? writer->Finish() : made;
}

inline std::vector<JsonRow> RowsOf(const std::string& path) {
  std::vector<JsonRow> rows;
  std::stringstream lines(ReadText(path));
  for (std::string line; std::getline(lines, line);) rows.push_back(JsonRow::parse(line));
  return rows;
}

// All files, one behind the other.
inline std::string AllText(const std::string& folder) {
  std::string text;
  for (const std::string& name : Names(folder)) text += name + "\n" + ReadText(folder + "/" + name);
  return text;
}

}  // namespace espalier
