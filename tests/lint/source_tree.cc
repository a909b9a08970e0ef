#include "tests/lint/source_tree.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>

namespace espalier::lint {
namespace {

namespace fs = std::filesystem;

bool IsText(const fs::path& path) {
  static const char* const kExtensions[] = {".h",  ".cc",  ".md",  ".proto", ".yaml",
                                            ".sh", ".txt", ".yml", ".cmake", ".py"};
  return std::any_of(std::begin(kExtensions), std::end(kExtensions),
                     [&](const char* extension) { return path.extension() == extension; });
}

SourceFile Read(const fs::path& root, const fs::path& path) {
  SourceFile file{.path = fs::relative(path, root).generic_string(), .lines = {}};
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) file.lines.push_back(line);
  return file;
}

std::vector<SourceFile> Load() {
  const fs::path root = ESPALIER_SOURCE_DIR;
  std::vector<SourceFile> files;
  for (const char* top :
       {"coordinator", "worker", "proto", "common", "deploy", "configs", "tests"}) {
    for (const auto& entry : fs::recursive_directory_iterator(root / top)) {
      if (entry.is_regular_file() && IsText(entry.path())) {
        files.push_back(Read(root, entry.path()));
      }
    }
  }
  files.push_back(Read(root, root / "README.md"));
  std::sort(files.begin(), files.end(),
            [](const SourceFile& a, const SourceFile& b) { return a.path < b.path; });
  return files;
}

size_t Indentation(const std::string& line) { return line.find_first_not_of(' '); }

// "namespace {", "class X {", "if (...) {" and the like open blocks that are no functions.
bool OpensFunction(const std::string& line) {
  static const std::regex not_a_function(
      R"(^\s*(namespace|class|struct|enum|union|extern|if|for|while|switch|do|else|try|\}|case|return|static const|const)\b.*)");
  static const std::regex body(
      R"(.*\)\s*(const|noexcept|override|final|->\s*[\w:<>*&, ]+|\s)*\{$)");
  return std::regex_match(line, body) && !std::regex_match(line, not_a_function);
}

}  // namespace

const std::vector<SourceFile>& SourceTree() {
  static const std::vector<SourceFile>& files = *new std::vector<SourceFile>(Load());
  return files;
}

std::vector<const SourceFile*> CppFiles() {
  std::vector<const SourceFile*> files;
  for (const SourceFile& file : SourceTree()) {
    if (EndsWith(file.path, ".h") || EndsWith(file.path, ".cc")) files.push_back(&file);
  }
  return files;
}

bool StartsWith(const std::string& text, const std::string& prefix) {
  return text.compare(0, prefix.size(), prefix) == 0;
}

bool EndsWith(const std::string& text, const std::string& suffix) {
  return text.size() >= suffix.size() &&
         text.compare(text.size() - suffix.size(), suffix.size(), suffix) == 0;
}

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash);
}

std::vector<FunctionSpan> Functions(const SourceFile& file) {
  std::vector<FunctionSpan> functions;
  const std::vector<std::string>& lines = file.lines;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (lines[i].empty() || !EndsWith(lines[i], "{") || !OpensFunction(lines[i])) continue;
    size_t first = i;  // a signature may take several lines, each further one indented more
    while (first > 0 && Indentation(lines[first]) != 0 && Indentation(lines[first]) != 2) --first;
    const size_t indent = Indentation(lines[first]);
    size_t last = i + 1;
    while (last < lines.size() &&
           !(Indentation(lines[last]) == indent && lines[last][indent] == '}')) {
      ++last;
    }
    functions.push_back({.signature = lines[first],
                         .first_line = static_cast<int>(first + 1),
                         .lines = static_cast<int>(last - first + 1)});
    i = last;
  }
  return functions;
}

}  // namespace espalier::lint
