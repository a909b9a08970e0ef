#include "tests/lint/named_paths.h"

#include <algorithm>
#include <set>

#include "tests/lint/include_graph.h"

namespace espalier::lint {
namespace {

// Where the comment of a line begins, if not in a string or an address.
size_t CommentOf(const std::string& line, const std::string& mark) {
  const size_t begin = line.find(mark);
  if (begin == std::string::npos || begin == 0) return begin;
  const auto quotes = std::count(line.begin(), line.begin() + static_cast<ptrdiff_t>(begin), '"');
  return quotes % 2 == 1 || line[begin - 1] == ':' ? std::string::npos : begin;
}

// A file's comments, line by line; empty where there is none. Documents are comments throughout.
std::vector<std::string> Comments(const SourceFile& file) {
  if (EndsWith(file.path, ".md")) return file.lines;
  const bool slashes = EndsWith(file.path, ".proto") || IsCpp(file.path);
  std::vector<std::string> comments;
  for (const std::string& line : file.lines) {
    const size_t begin = CommentOf(line, slashes ? "//" : "#");
    comments.push_back(begin == std::string::npos ? "" : line.substr(begin));
  }
  return comments;
}

SourceFiles CommentsOf(const SourceFiles& files) {
  SourceFiles comments;
  for (const SourceFile& file : files) {
    comments.push_back({.path = file.path, .lines = Comments(file)});
  }
  return comments;
}

std::vector<const SourceFile*> All(const SourceFiles& files) {
  std::vector<const SourceFile*> all;
  for (const SourceFile& file : files) all.push_back(&file);
  return all;
}

std::string Joined(const std::string& folder, const std::string& path) {
  return folder.empty() ? path : folder + "/" + path;
}

}  // namespace

std::vector<const SourceFile*> Documents(const SourceFiles& files) {
  std::vector<const SourceFile*> documents;
  for (const SourceFile& file : files) {
    if (EndsWith(file.path, ".md")) documents.push_back(&file);
  }
  return documents;
}

void ForEachMatch(const std::vector<const SourceFile*>& files, const std::regex& pattern,
                  const std::function<void(const SourceFile&, size_t, const std::smatch&)>& visit) {
  for (const SourceFile* file : files) {
    for (size_t i = 0; i < file->lines.size(); ++i) {
      const std::string& line = file->lines[i];
      for (std::sregex_iterator it(line.begin(), line.end(), pattern), end; it != end; ++it) {
        visit(*file, i, *it);
      }
    }
  }
}

Problems PathProblems(const SourceFiles& files, const Exists& exists) {
  static const std::regex path(
      R"((^|[^\w./$}~-])((coordinator|worker|proto|common|deploy|configs|tests|\.github|\.ci)/[\w./*-]*[\w*]))");
  const SourceFiles comments = CommentsOf(files);
  Problems problems;
  ForEachMatch(
      All(comments), path, [&](const SourceFile& file, size_t i, const std::smatch& match) {
        std::string named = match[2];
        const size_t star = named.find('*');
        if (star != std::string::npos) named = FolderOf(named.substr(0, star));
        if (exists(named) || exists(named + ".h") || exists(Joined(FolderOf(file.path), named)))
          return;
        problems.push_back(At(file, i) + "no such path: " + named);
      });
  return problems;
}

Problems LinkProblems(const SourceFiles& files, const Exists& exists) {
  static const std::regex link(R"(\]\(([^)#:]+)(#[^)]*)?\))");
  Problems problems;
  ForEachMatch(Documents(files), link,
               [&](const SourceFile& file, size_t i, const std::smatch& match) {
                 if (exists(Joined(FolderOf(file.path), match[1]))) return;
                 problems.push_back(At(file, i) + "dead link: " + match[1].str());
               });
  return problems;
}

Problems NameProblems(const SourceFiles& files) {
  static const std::regex name(R"((^|[^\w*./<{}-])([a-z][\w-]*\.(h|cc|cu|cuh|md|proto))\b)");
  std::set<std::string> known;
  for (const SourceFile& file : files) {
    known.insert(NameOf(file.path));
    if (!IsCpp(file.path)) continue;
    for (const Include& include : IncludesOf(file)) known.insert(NameOf(include.header));
  }
  const SourceFiles comments = CommentsOf(files);
  Problems problems;
  ForEachMatch(All(comments), name,
               [&](const SourceFile& file, size_t i, const std::smatch& match) {
                 if (!known.count(match[2])) {
                   problems.push_back(At(file, i) + "no file is called " + match[2].str());
                 }
               });
  return problems;
}

Problems SectionProblems(const SourceFiles& files) {
  static const std::regex section(
      R"(\b[Ss]ections? \d|\b[Aa]rchitecture,? \d|\bdesign (page|note)s?\b)");
  static const std::regex citation(R"((19|20)\d\d|\bRFC \d+)");
  const SourceFiles comments = CommentsOf(files);
  Problems problems;
  ForEachMatch(
      All(comments), section, [&](const SourceFile& file, size_t i, const std::smatch& match) {
        if (std::regex_search(file.lines[i], citation)) return;
        if (i > 0 && std::regex_search(file.lines[i - 1], citation)) return;
        problems.push_back(At(file, i) +
                           "sends the reader to a document that is not here: " + match[0].str());
      });
  return problems;
}

}  // namespace espalier::lint
