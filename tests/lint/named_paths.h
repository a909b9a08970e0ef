// What documents and comments name must exist: paths, links, documents. Used by tests/lint.
// Single-threaded.
#pragma once

#include <functional>
#include <regex>
#include <string>

#include "tests/lint/source_tree.h"

namespace espalier::lint {

// The documents (*.md) among the files.
std::vector<const SourceFile*> Documents(const SourceFiles& files);

// Calls visit(file, index of the line, match) for every match of `pattern` in the files.
void ForEachMatch(const std::vector<const SourceFile*>& files, const std::regex& pattern,
                  const std::function<void(const SourceFile&, size_t, const std::smatch&)>& visit);

// Whether a path, relative to the repository, exists; the checks ask it, so that tests can answer.
using Exists = std::function<bool(const std::string&)>;

// Paths in documents, and in the comments of all other files, that begin with a folder of the top
// level: each exists, from the top or from the file's folder, as it is or as a header without .h.
Problems PathProblems(const SourceFiles& files, const Exists& exists);

// Links in documents: each leads to a file.
Problems LinkProblems(const SourceFiles& files, const Exists& exists);

// Comments that send the reader to a source or a document by its name alone: there is a file of
// that name, or a library's header of it is included somewhere.
Problems NameProblems(const SourceFiles& files);

// Comments that send the reader to a section of a document that is not here. A section may be
// cited with the authors and the year, or the number of an RFC, in the same comment.
Problems SectionProblems(const SourceFiles& files);

}  // namespace espalier::lint
