// SourceTree: the files of the repository as lines of text, for the lint tests.
// Single-threaded.
#pragma once

#include <string>
#include <vector>

namespace espalier::lint {

struct SourceFile {
  std::string path;  // relative to the repository, with '/'
  std::vector<std::string> lines;
};

// Every text file under the project's folders, sorted by path; build folders are left out.
const std::vector<SourceFile>& SourceTree();

// The C++ files (.h and .cc) among them.
std::vector<const SourceFile*> CppFiles();

bool StartsWith(const std::string& text, const std::string& prefix);
bool EndsWith(const std::string& text, const std::string& suffix);

// The folder of a path: "worker/model" for "worker/ops/ops.h", "" at the top.
std::string FolderOf(const std::string& path);

struct FunctionSpan {
  std::string signature;  // its first line
  int first_line = 0;     // from 1
  int lines = 0;
};

// The function definitions of a clang-formatted file, found by indentation: a body runs from the
// line that ends in "{" to the "}" at the indentation of the signature.
std::vector<FunctionSpan> Functions(const SourceFile& file);

}  // namespace espalier::lint
