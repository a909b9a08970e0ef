// The functions of a C++ file and their lengths. Used by tests/lint/size_limits_test.cc.
// Single-threaded.
#pragma once

#include <string>
#include <vector>

#include "tests/lint/source_tree.h"

namespace espalier::lint {

struct FunctionSpan {
  std::string signature;  // its first line
  int first_line = 0;     // from 1
  int lines = 0;
};

// The function definitions of a clang-formatted file, found by indentation: a body runs from the
// line that ends in "{" to the "}" at the indentation of the signature.
std::vector<FunctionSpan> Functions(const SourceFile& file);

}  // namespace espalier::lint
