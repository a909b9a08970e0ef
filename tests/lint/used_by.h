// Whether the comment that a header opens with tells the truth about who includes the header. Used
// by size_limits_test.cc. Single-threaded.
//
// Its sentence "Used by ..." names at least one file ("run.cc": of the header's folder, else the
// only one of that name; "fused_*.cc": all of the header's folder that match), folder
// ("worker/train", its own too; "common/" at the top) or program ("espalierd"). Every one of them
// includes the header, directly or through other headers; of a folder any file does, of a program
// any unit. Other words are for people.
//
// And it leaves nobody out: whoever includes the header itself belongs to the unit of a named file
// (run.h to "run.cc"), to a named folder or to a named program. Who lives in the header's own
// folder need not be named, unless it ends in "only"; tests need not be for what is no test.
#pragma once

#include "tests/lint/source_tree.h"

namespace espalier::lint {

Problems UsedByProblems(const SourceFiles& files);

}  // namespace espalier::lint
