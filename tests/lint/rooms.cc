#include "tests/lint/rooms.h"

#include <algorithm>
#include <regex>

#include "tests/lint/include_graph.h"

namespace espalier::lint {
namespace {

struct Library {
  std::string name;
  std::regex header;
};

const std::vector<Library>& Libraries() {
  static const std::vector<Library>& libraries = *new std::vector<Library>{
      {"LibTorch", std::regex("(torch|ATen|c10)/.*")},
      {"MPI", std::regex("mpi\\.h")},
      {"gRPC", std::regex("(grpcpp|grpc)/.*|.*\\.grpc\\.pb\\.h")},
      {"prometheus-cpp", std::regex("prometheus/.*")},
      {"SQLite", std::regex("sqlite3.*")},
      {"yaml-cpp", std::regex("yaml-cpp/.*")},
      {"nlohmann-json", std::regex("nlohmann/.*")},
      {"PCRE2", std::regex("pcre2.*")},
      {"utf8proc", std::regex("utf8proc.*")},
      {"CLI11", std::regex("CLI/.*")},
      {"spdlog", std::regex("spdlog/.*")},
      {"OpenSSL", std::regex("openssl/.*")},
      {"libsystemd", std::regex("systemd/.*")},
      {"cpp-httplib", std::regex("httplib\\.h")},
      {"oneDNN", std::regex("(dnnl|oneapi)[./].*")},
      {"jemalloc", std::regex("jemalloc/.*")},
      {"CUDA", std::regex("(cuda|cublas|cudnn|nccl).*")},
  };
  return libraries;
}

// The library of a header, or "" for the standard library, the system and Abseil.
std::string LibraryOf(const std::string& header) {
  for (const Library& library : Libraries()) {
    if (std::regex_match(header, library.header)) return library.name;
  }
  return "";
}

// "proto" for a header that protoc makes, else the folder.
std::string TargetOf(const std::string& header) {
  return StartsWith(header, "espalier/v1/") ? "proto" : FolderOf(header);
}

// What a folder may do: the rooms that it may include, and the libraries that may reach it.
struct Rights {
  bool known = false;
  std::set<std::string> rooms;
  std::set<std::string> libraries;
};

Rights RightsOf(const std::string& folder, const Layout& layout) {
  Rights rights;
  for (size_t i = 0; i < layout.size(); ++i) {
    std::set<std::string> before;
    for (const Room& room : layout.front().rooms) {
      if (i > 0) before.insert(room.folder);
    }
    for (const Room& room : layout[i].rooms) {
      if (room.folder == folder) {
        for (const std::string& closed : room.closed) before.erase(closed);
        before.insert(folder);
        return {.known = true, .rooms = before, .libraries = room.libraries};
      }
      before.insert(room.folder);
    }
    if (layout[i].folder == folder) {
      before.insert(folder);
      return {.known = true, .rooms = before, .libraries = layout[i].root_libraries};
    }
  }
  return rights;
}

// Libraries whose headers are quoted all the same.
bool IsQuotedByCustom(const std::string& header) {
  return StartsWith(header, "absl/") || StartsWith(header, "google/");
}

bool IsUnknownRootFile(const std::string& path, const Layout& layout) {
  return std::any_of(layout.begin(), layout.end(), [&](const Part& part) {
    return part.folder == FolderOf(path) && !part.root_files.count(StemOf(NameOf(path)));
  });
}

bool IsKnownFolder(const std::string& folder, const Layout& layout) {
  // Folders of tests that belong to no one room.
  static const std::set<std::string> others{"tests/bench",      "tests/bench/peers",
                                            "tests/cluster",    "tests/confirm",
                                            "tests/deploy",     "tests/fuzz",
                                            "tests/lint",       "tests/mpi",
                                            "tests/scenarios",  "tests/sim",
                                            "tests/soak",       "tests/worker/support",
                                            "tests/worker/mac", "tests/reference_models"};
  if (StartsWith(folder, "tests/")) {
    return StartsWith(folder, "tests/data/") || others.count(folder) ||
           RightsOf(folder.substr(6), layout).known;
  }
  return RightsOf(folder, layout).known ||
         std::none_of(layout.begin(), layout.end(),
                      [&](const Part& part) { return StartsWith(folder, part.folder + "/"); });
}

}  // namespace

Problems RoomProblems(const SourceFiles& files, const Layout& layout) {
  Problems problems;
  std::set<std::string> paths;
  for (const SourceFile& file : files) paths.insert(file.path);
  for (const SourceFile* file : NonTestFiles(files)) {
    const Rights rights = RightsOf(FolderOf(file->path), layout);
    if (!rights.known) problems.push_back(file->path + ": the layout knows no such room");
    if (IsUnknownRootFile(file->path, layout)) {
      problems.push_back(file->path + ": the layout knows no such root file");
    }
    for (const Include& include : IncludesOf(*file)) {
      if (!include.quoted) continue;
      if (IsQuotedByCustom(include.header)) continue;
      if (TargetOf(include.header) != "proto" && !paths.count(include.header)) {
        problems.push_back(At(*file, include.index) + include.header +
                           " is no path from the top of the repository");
      } else if (rights.known && !rights.rooms.count(TargetOf(include.header))) {
        problems.push_back(At(*file, include.index) + include.header + " is not for this room");
      }
    }
  }
  return problems;
}

Problems LibraryProblems(const SourceFiles& files, const Layout& layout) {
  std::map<std::string, std::map<std::string, size_t>> own;  // path -> library -> line
  for (const SourceFile* file : CppFiles(files)) {
    for (const Include& include : IncludesOf(*file)) {
      const std::string library = LibraryOf(include.header);
      if (!library.empty()) own[file->path].emplace(library, include.index);
    }
  }
  const IncludeGraph graph(files);
  Problems problems;
  for (const SourceFile* file : NonTestFiles(files)) {
    const Rights rights = RightsOf(FolderOf(file->path), layout);
    if (!rights.known) continue;  // RoomProblems tells
    std::set<std::string> reach = graph.Reach(file->path);
    reach.insert(file->path);
    for (const std::string& path : reach) {
      for (const auto& [library, index] : own[path]) {
        if (rights.libraries.count(library)) continue;
        problems.push_back(file->path + ": " + library + " is not for this room; included in " +
                           path + ":" + std::to_string(index + 1));
      }
    }
  }
  return problems;
}

Problems CrowdedRooms(const SourceFiles& files, size_t limit) {
  Problems problems;
  for (const auto& [folder, units] : IncludeGraph(files).UnitsByFolder()) {
    if (units.size() <= limit || StartsWith(folder, "tests/")) continue;
    std::string names;
    for (const std::string& unit : units) names.append(" ").append(NameOf(unit));
    problems.push_back(folder + ": " + std::to_string(units.size()) + " units:" + names);
  }
  return problems;
}

Problems FolderProblems(const SourceFiles& files, const Layout& layout) {
  std::set<std::string> unknown;
  Problems problems;
  for (const SourceFile& file : files) {
    const std::string folder = FolderOf(file.path);
    if (!IsKnownFolder(folder, layout)) unknown.insert(folder);
    if (folder == "tests" && IsCpp(file.path)) {
      problems.push_back(file.path + ": belongs into the folder of what it tests");
    }
  }
  for (const std::string& folder : unknown) {
    problems.push_back(folder + (StartsWith(folder, "tests/")
                                     ? ": mirrors no folder of the layout"
                                     : ": the layout knows no such folder"));
  }
  return problems;
}

}  // namespace espalier::lint
