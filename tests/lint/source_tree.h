// SourceTree: the files of the repository as lines of text; checks of the lint are functions of
// such files, so that tests can try them on made-up ones. Used by tests/lint. Single-threaded.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace espalier::lint {

struct SourceFile {
  std::string path;  // relative to the repository, with '/'
  std::vector<std::string> lines;
};

using SourceFiles = std::vector<SourceFile>;

// What a check found: one sentence each, beginning with the place.
using Problems = std::vector<std::string>;

// One a line, all of them, for EXPECT_EQ with "".
std::string AsText(const Problems& problems);

// Every file under the project's folders, sorted by path; without lines where it is no text. Build
// folders and what Python compiled are left out.
const SourceFiles& SourceTree();

// A tree for tests of the lint itself: path -> text.
SourceFiles MadeUpTree(const std::map<std::string, std::string>& texts);

// "#include" of a project's header or, for a name in <>, of a library's: a line for made-up files.
std::string IncludeLine(const std::string& header);

// The C++ files (.h, .cc, .cu, .cuh), and those among them that are not under tests/. What lies
// under deploy/ is in the form of others: it stands in for headers of another system.
std::vector<const SourceFile*> CppFiles(const SourceFiles& files);
std::vector<const SourceFile*> NonTestFiles(const SourceFiles& files);

bool IsCpp(const std::string& path);
bool IsHeader(const std::string& path);
bool StartsWith(const std::string& text, const std::string& prefix);
bool EndsWith(const std::string& text, const std::string& suffix);

// Of "worker/model/decoder.h": "worker/model", "decoder.h", "worker/model/decoder".
std::string FolderOf(const std::string& path);
std::string NameOf(const std::string& path);
std::string StemOf(const std::string& path);

// "path:line: ", with lines counted from 1 and `index` from 0.
std::string At(const SourceFile& file, size_t index);

// The comment lines that a file begins with, joined, without their slashes.
std::string OpeningComment(const SourceFile& file);

}  // namespace espalier::lint
