// IncludeGraph: which project headers each C++ file includes, itself and through others; and units:
// a header with its sources, the smallest thing that rooms hold. Used by tests/lint.
// Single-threaded.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/lint/source_tree.h"

namespace espalier::lint {

struct Include {
  std::string header;  // as written, without <> or ""
  bool quoted = false;
  size_t index = 0;  // of the line, from 0
};

// The #include lines of a file.
std::vector<Include> IncludesOf(const SourceFile& file);

class IncludeGraph {
 public:
  explicit IncludeGraph(const SourceFiles& files);

  // The files of this tree that `path` includes itself.
  const std::set<std::string>& Direct(const std::string& path) const;

  // All files of this tree that reach the compiler with `path`, without itself.
  std::set<std::string> Reach(const std::string& path) const;

  // All files that a program needs: what its main file reaches, and the sources of their units.
  std::set<std::string> ReachOfProgram(const std::string& main) const;

  // The unit of a file, named like its header without the extension. A source belongs to the header
  // of its name; without one, to the header of its folder that it includes and whose name it
  // continues ("loop_effects" that of "loop"). Tests and main files are units of their own.
  const std::string& UnitOf(const std::string& path) const;

  // The units of each folder.
  std::map<std::string, std::set<std::string>> UnitsByFolder() const;

  // Units that include each other in a circle: each set of them once, "a/x, a/y".
  Problems Cycles() const;

 private:
  std::string FindUnit(const std::string& path) const;

  std::map<std::string, std::set<std::string>> direct_;  // of every C++ file
  std::map<std::string, std::string> units_;             // file -> unit
  std::map<std::string, std::set<std::string>> files_;   // unit -> files
};

}  // namespace espalier::lint
