#include "tests/lint/source_tree.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace espalier::lint {
namespace {

namespace fs = std::filesystem;

// Scripts without an extension (deploy/dev) are text too.
bool IsText(const fs::path& path) {
  static const char* const kExtensions[] = {".h",     ".cc",   ".cu", ".cuh", ".md",
                                            ".proto", ".yaml", ".sh", ".txt", ".yml",
                                            ".cmake", ".py",   ""};
  return std::any_of(std::begin(kExtensions), std::end(kExtensions),
                     [&](const char* extension) { return path.extension() == extension; });
}

std::vector<std::string> Lines(std::istream& in) {
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

void Add(const fs::path& root, const fs::path& path, SourceFiles& files) {
  std::ifstream in;
  if (IsText(path)) in.open(path);
  files.push_back({.path = fs::relative(path, root).generic_string(), .lines = Lines(in)});
}

SourceFiles Load(const fs::path& root) {
  SourceFiles files;
  for (const char* top : {".ci", ".github", "coordinator", "worker", "proto", "common", "deploy",
                          "configs", "tests"}) {
    if (!fs::exists(root / top)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(root / top)) {
      if (entry.is_regular_file() && entry.path().extension() != ".pyc") {
        Add(root, entry.path(), files);
      }
    }
  }
  for (const char* name : {"README.md", "CMakeLists.txt"}) Add(root, root / name, files);
  std::sort(files.begin(), files.end(),
            [](const SourceFile& a, const SourceFile& b) { return a.path < b.path; });
  return files;
}

}  // namespace

std::string AsText(const Problems& problems) {
  std::string text;
  for (const std::string& problem : problems) text += "\n" + problem;
  return text;
}

const SourceFiles& SourceTree() {
  static const SourceFiles& files = *new SourceFiles(Load(ESPALIER_SOURCE_DIR));
  return files;
}

SourceFiles MadeUpTree(const std::map<std::string, std::string>& texts) {
  SourceFiles files;
  for (const auto& [path, text] : texts) {
    std::istringstream in(text);
    files.push_back({.path = path, .lines = Lines(in)});
  }
  return files;
}

std::string IncludeLine(const std::string& header) {
  return "#include " + (StartsWith(header, "<") ? header : '"' + header + '"') + "\n";
}

std::vector<const SourceFile*> CppFiles(const SourceFiles& files) {
  std::vector<const SourceFile*> found;
  for (const SourceFile& file : files) {
    if (IsCpp(file.path) && !StartsWith(file.path, "deploy/")) found.push_back(&file);
  }
  return found;
}

std::vector<const SourceFile*> NonTestFiles(const SourceFiles& files) {
  std::vector<const SourceFile*> found;
  for (const SourceFile* file : CppFiles(files)) {
    if (!StartsWith(file->path, "tests/")) found.push_back(file);
  }
  return found;
}

bool IsCpp(const std::string& path) {
  return IsHeader(path) || EndsWith(path, ".cc") || EndsWith(path, ".cu");
}

bool IsHeader(const std::string& path) { return EndsWith(path, ".h") || EndsWith(path, ".cuh"); }

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

std::string NameOf(const std::string& path) { return path.substr(path.rfind('/') + 1); }

std::string StemOf(const std::string& path) { return path.substr(0, path.rfind('.')); }

std::string At(const SourceFile& file, size_t index) {
  return file.path + ":" + std::to_string(index + 1) + ": ";
}

std::string OpeningComment(const SourceFile& file) {
  std::string text;
  for (const std::string& line : file.lines) {
    if (!StartsWith(line, "//")) break;
    if (!text.empty()) text += ' ';
    if (line.size() > 3) text += line.substr(3);
  }
  return text;
}

}  // namespace espalier::lint
