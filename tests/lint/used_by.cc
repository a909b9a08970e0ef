#include "tests/lint/used_by.h"

#include <optional>
#include <regex>

#include "tests/lint/include_graph.h"

namespace espalier::lint {
namespace {

struct Sentence {
  std::vector<std::string> words;  // without punctuation at their ends
  bool exclusive = false;
};

std::optional<Sentence> UsedBySentence(const std::string& comment) {
  static const std::regex sentence(R"(\bUsed by (.*?)\.( |$))");
  static const std::regex word(R"([A-Za-z0-9_./*-]*[A-Za-z0-9_/])");
  std::smatch match;
  if (!std::regex_search(comment, match, sentence)) return std::nullopt;
  const std::string text = match[1];
  Sentence found;
  for (std::sregex_iterator it(text.begin(), text.end(), word), end; it != end; ++it) {
    found.words.push_back(it->str());
  }
  found.exclusive =
      !found.words.empty() && (found.words.back() == "only" || found.words.back() == "alone");
  return found;
}

// The main file of each program, from "espalier_program(NAME MAIN" in CMakeLists.txt.
std::map<std::string, std::string> Programs(const SourceFiles& files) {
  static const std::regex call(R"(^espalier_program\((\S+) (\S+).*)");
  std::map<std::string, std::string> programs;
  for (const SourceFile& file : files) {
    if (NameOf(file.path) != "CMakeLists.txt") continue;
    for (const std::string& line : file.lines) {
      std::smatch match;
      if (std::regex_match(line, match, call)) {
        programs[match[1]] = FolderOf(file.path) + "/" + match[2].str();
      }
    }
  }
  return programs;
}

class Checker {
 public:
  explicit Checker(const SourceFiles& files)
      : files_(CppFiles(files)), graph_(files), programs_(Programs(files)) {
    for (const SourceFile* file : files_) {
      for (const std::string& header : graph_.Reach(file->path)) users_[header].insert(file->path);
    }
    for (const auto& [name, main] : programs_)
      reach_of_program_[name] = graph_.ReachOfProgram(main);
  }

  Problems Check(const SourceFile& header) const {
    const std::optional<Sentence> sentence = UsedBySentence(OpeningComment(header));
    if (!sentence.has_value()) return {header.path + ": its opening comment lacks 'Used by ...'"};
    Problems problems;
    std::set<std::string> named;  // units
    size_t names = 0;
    for (const std::string& word : sentence->words) {
      const std::optional<std::set<std::string>> meant = FilesMeant(header.path, word);
      if (!meant.has_value()) continue;
      ++names;
      for (const std::string& path : *meant) named.insert(graph_.UnitOf(path));
      const std::string problem = ProblemOf(header.path, word, *meant);
      if (!problem.empty())
        problems.push_back(header.path + ": used by '" + word + "': " + problem);
    }
    if (names == 0) {
      problems.push_back(header.path + ": 'Used by ...' names no file, folder or program");
    }
    AppendOthers(header.path, named, sentence->exclusive, problems);
    return problems;
  }

 private:
  // The files that a word stands for; nothing when it is just a word.
  std::optional<std::set<std::string>> FilesMeant(const std::string& header,
                                                  const std::string& word) const {
    static const std::regex file_name(R"(.*\.(h|cc|cu|cuh))");
    if (programs_.count(word)) return reach_of_program_.at(word);
    const bool is_file = std::regex_match(word, file_name);
    const bool is_folder = !is_file && word.find('/') != std::string::npos;
    if (!is_file && !is_folder) return std::nullopt;
    const std::string folder = is_folder && EndsWith(word, "/") ? word : word + "/";
    std::set<std::string> here, anywhere;
    for (const SourceFile* file : files_) {
      const std::string& path = file->path;
      if (is_folder) {
        if (StartsWith(path, folder)) here.insert(path);
      } else if (path == word || Matches(path, FolderOf(header), word)) {
        here.insert(path);
      } else if (NameOf(path) == word) {
        anywhere.insert(path);
      }
    }
    return here.empty() ? anywhere : here;
  }

  // Whether the file lies in `folder` and is called so; one "*" stands for anything.
  static bool Matches(const std::string& path, const std::string& folder,
                      const std::string& pattern) {
    const std::string name = NameOf(path);
    const size_t star = pattern.find('*');
    if (FolderOf(path) != folder) return false;
    if (star == std::string::npos) return name == pattern;
    const std::string begin = pattern.substr(0, star), end = pattern.substr(star + 1);
    return name.size() >= begin.size() + end.size() && StartsWith(name, begin) &&
           EndsWith(name, end);
  }

  std::string ProblemOf(const std::string& header, const std::string& word,
                        const std::set<std::string>& meant) const {
    if (meant.empty()) return "there is no such file or folder";
    const bool is_file = word.find('.') != std::string::npos;
    if (programs_.count(word)) return meant.count(header) ? "" : "none of its units includes it";
    if (is_file && word.find('*') == std::string::npos && meant.size() > 1) {
      return "several files are called so; write the path";
    }
    std::string missing;
    bool any = false;
    for (const std::string& path : meant) {
      if (graph_.UnitOf(path) == graph_.UnitOf(header)) continue;
      const auto users = users_.find(header);
      const bool uses = users != users_.end() && users->second.count(path);
      any = any || uses;
      if (is_file && !uses) missing += " " + path;
    }
    if (!missing.empty()) return "does not include it:" + missing;
    return any ? "" : "nothing there includes it";
  }

  // Who includes the header itself and is not of the named units: those of other folders, or of its
  // own too if nobody else may.
  void AppendOthers(const std::string& header, const std::set<std::string>& named, bool exclusive,
                    Problems& problems) const {
    for (const SourceFile* file : files_) {
      const std::string& path = file->path;
      if (StartsWith(path, "tests/") && !StartsWith(header, "tests/")) continue;
      const std::string& unit = graph_.UnitOf(path);
      if (named.count(unit) || unit == graph_.UnitOf(header)) continue;
      if (!graph_.Direct(path).count(header)) continue;
      if (exclusive) {
        problems.push_back(header + ": is said to be used by others only, but " + path +
                           " includes it");
      } else if (FolderOf(path) != FolderOf(header)) {
        problems.push_back(header + ": 'Used by ...' leaves out " + path);
      }
    }
  }

  const std::vector<const SourceFile*> files_;
  const IncludeGraph graph_;
  const std::map<std::string, std::string> programs_;
  std::map<std::string, std::set<std::string>> users_;  // of a header, through others too
  std::map<std::string, std::set<std::string>> reach_of_program_;
};

}  // namespace

Problems UsedByProblems(const SourceFiles& files) {
  const Checker checker(files);
  Problems problems;
  for (const SourceFile* file : CppFiles(files)) {
    if (!IsHeader(file->path)) continue;
    const Problems found = checker.Check(*file);
    problems.insert(problems.end(), found.begin(), found.end());
  }
  return problems;
}

}  // namespace espalier::lint
