#include "tests/lint/include_graph.h"

#include <algorithm>
#include <regex>

namespace espalier::lint {
namespace {

using Edges = std::map<std::string, std::set<std::string>>;

std::set<std::string> ReachIn(const Edges& edges, const std::string& from) {
  std::set<std::string> seen;
  std::vector<std::string> pending{from};
  while (!pending.empty()) {
    const std::string current = pending.back();
    pending.pop_back();
    const auto next = edges.find(current);
    if (next == edges.end()) continue;
    for (const std::string& to : next->second) {
      if (seen.insert(to).second) pending.push_back(to);
    }
  }
  return seen;
}

}  // namespace

std::vector<Include> IncludesOf(const SourceFile& file) {
  static const std::regex pattern(R"re(^\s*#\s*include\s*([<"])([^>"]+)[>"].*)re");
  std::vector<Include> includes;
  for (size_t i = 0; i < file.lines.size(); ++i) {
    if (file.lines[i].find("include") == std::string::npos) continue;  // the pattern is slow
    std::smatch match;
    if (!std::regex_match(file.lines[i], match, pattern)) continue;
    includes.push_back({.header = match[2], .quoted = match[1] == "\"", .index = i});
  }
  return includes;
}

IncludeGraph::IncludeGraph(const SourceFiles& files) {
  const std::vector<const SourceFile*> sources = CppFiles(files);
  for (const SourceFile* file : sources) direct_[file->path];
  for (const SourceFile* file : sources) {
    for (const Include& include : IncludesOf(*file)) {
      if (include.quoted && direct_.count(include.header)) {
        direct_[file->path].insert(include.header);
      }
    }
  }
  for (const auto& [path, headers] : direct_) {
    units_[path] = FindUnit(path);
    files_[units_[path]].insert(path);
  }
}

std::string IncludeGraph::FindUnit(const std::string& path) const {
  const std::string stem = StemOf(path);
  if (IsHeader(path) || EndsWith(stem, "_test") || EndsWith(stem, "_main")) return stem;
  const std::set<std::string>& headers = Direct(path);
  for (std::string owner = stem;;) {
    for (const char* extension : {".h", ".cuh"}) {
      const std::string header = owner + extension;
      if (direct_.count(header) && (owner == stem || headers.count(header))) return owner;
    }
    const size_t end = owner.rfind('_');
    if (end == std::string::npos || owner.find('/', end) != std::string::npos) return stem;
    owner.resize(end);
  }
}

const std::set<std::string>& IncludeGraph::Direct(const std::string& path) const {
  static const std::set<std::string>& none = *new std::set<std::string>;
  const auto found = direct_.find(path);
  return found == direct_.end() ? none : found->second;
}

std::set<std::string> IncludeGraph::Reach(const std::string& path) const {
  std::set<std::string> reach = ReachIn(direct_, path);
  reach.erase(path);
  return reach;
}

std::set<std::string> IncludeGraph::ReachOfProgram(const std::string& main) const {
  Edges edges = direct_;
  for (const auto& [path, headers] : direct_) {
    if (IsHeader(path))
      edges[path].insert(files_.at(UnitOf(path)).begin(), files_.at(UnitOf(path)).end());
  }
  return ReachIn(edges, main);
}

const std::string& IncludeGraph::UnitOf(const std::string& path) const { return units_.at(path); }

std::map<std::string, std::set<std::string>> IncludeGraph::UnitsByFolder() const {
  std::map<std::string, std::set<std::string>> folders;
  for (const auto& [unit, files] : files_) folders[FolderOf(unit)].insert(unit);
  return folders;
}

Problems IncludeGraph::Cycles() const {
  Edges edges;
  for (const auto& [path, headers] : direct_) {
    for (const std::string& header : headers) {
      if (UnitOf(header) != UnitOf(path)) edges[UnitOf(path)].insert(UnitOf(header));
    }
  }
  std::map<std::string, std::set<std::string>> reach;
  for (const auto& [unit, to] : edges) reach[unit] = ReachIn(edges, unit);
  Problems cycles;
  std::set<std::string> told;
  for (const auto& [unit, reached] : reach) {
    if (!reached.count(unit) || told.count(unit)) continue;
    std::string cycle;  // all that it reaches and that reach it
    for (const std::string& other : reached) {
      if (!reach.count(other) || !reach.at(other).count(unit)) continue;
      cycle += (cycle.empty() ? "" : ", ") + other;
      told.insert(other);
    }
    cycles.push_back(cycle);
  }
  return cycles;
}

}  // namespace espalier::lint
