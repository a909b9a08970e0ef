// A thin cover over SQLite's C interface: handles that close themselves and errors as absl::Status.
// Used by sqlite_journal.h. Thread rule: one thread at a time per Database.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

struct sqlite3;
struct sqlite3_stmt;

namespace espalier {

// A prepared statement. Bind all parameters, then Step until it says false, then Reset.
class Statement {
 public:
  explicit Statement(sqlite3_stmt* statement) : statement_(statement) {}

  // Parameters count from 1.
  void BindText(int index, absl::string_view text);
  void BindBlob(int index, absl::string_view bytes);
  void BindInt(int index, int64_t value);
  // True: a row is there. ALREADY_EXISTS: a key is taken.
  absl::StatusOr<bool> Step();
  // Runs a statement that returns no rows, and makes it ready for the next use, whatever happened.
  absl::Status Run();
  void Reset();

  // Columns count from 0; valid until the next Step.
  std::string Text(int column) const;
  std::string Blob(int column) const;
  int64_t Int(int column) const;

 private:
  struct Finalize {
    void operator()(sqlite3_stmt* statement) const;
  };
  std::unique_ptr<sqlite3_stmt, Finalize> statement_;
};

class Database {
 public:
  // Opens or creates the file.
  static absl::StatusOr<Database> Open(const std::string& path);

  absl::Status Execute(const std::string& sql);
  absl::StatusOr<Statement> Prepare(absl::string_view sql);
  // The single number that a query gives, such as a pragma's value.
  absl::StatusOr<int64_t> Number(absl::string_view sql);
  absl::StatusOr<std::string> Text(absl::string_view sql);

 private:
  struct Close {
    void operator()(sqlite3* database) const;
  };
  explicit Database(sqlite3* database) : database_(database) {}
  std::unique_ptr<sqlite3, Close> database_;
};

}  // namespace espalier
