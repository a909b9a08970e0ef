// The rooms of the system and who may include what: the layout as data, and the checks of it.
// Used by tests/lint. Single-threaded.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "tests/lint/source_tree.h"

namespace espalier::lint {

struct Room {
  std::string folder;
  std::set<std::string> libraries = {};  // third-party ones whose headers may reach its files
  std::set<std::string> closed = {};     // rooms before it that it may not include all the same
};

// A top-level folder of sources.
struct Part {
  std::string folder;
  std::vector<Room> rooms;  // in dependency order: each may include those before it
  // The stems of the files in `folder` itself, which put the rooms together.
  std::set<std::string> root_files = {};
  std::set<std::string> root_libraries = {};
};

// In dependency order too: the rooms of the first part are open to all, others to their own part.
using Layout = std::vector<Part>;

const Layout& EspalierLayout();

// Includes of rooms that come later or are closed; files in folders, and root files, that the
// layout does not know; quoted includes that are not written from the top of the repository.
Problems RoomProblems(const SourceFiles& files, const Layout& layout);

// Library headers that reach a file, directly or through headers of this project, in a room that
// may not have them.
Problems LibraryProblems(const SourceFiles& files, const Layout& layout);

// Rooms with more than `limit` units.
Problems CrowdedRooms(const SourceFiles& files, size_t limit);

// Folders with files of any kind that nobody knows: of sources, those that are not in the layout;
// of tests, those that mirror none of these, are not of tests/data and not one of the few that
// belong to no one room. And C++ files in tests/ itself.
Problems FolderProblems(const SourceFiles& files, const Layout& layout);

}  // namespace espalier::lint
