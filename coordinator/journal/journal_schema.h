// The tables of the SQLite journal and how a file of an older version becomes one of this version.
// Used by SqliteJournal when it opens a file.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "coordinator/journal/sqlite.h"

namespace espalier {

// Migration i (from 0) turns schema version i into i + 1. Never changed once released: a new
// version is a new entry.
absl::Span<const char* const> JournalMigrations();

// Brings the file to the newest version in one transaction; a new file starts at version 0.
// DATA_LOSS: damaged. FAILED_PRECONDITION: another program's file, or a newer espalierd's. The
// file is unchanged on error. `path` is for the messages.
absl::Status MigrateJournal(Database& database, const std::string& path,
                            absl::Span<const char* const> migrations);

}  // namespace espalier
