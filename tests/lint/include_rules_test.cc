// Who may include what (the layout table of the README): folder order is dependency order.
#include <gtest/gtest.h>

#include <map>
#include <regex>
#include <set>

#include "tests/lint/source_tree.h"

namespace espalier::lint {
namespace {

using FolderRules = std::map<std::string, std::set<std::string>>;

// Folders whose headers a folder may include, besides its own.
const FolderRules& ProjectIncludes() {
  static FolderRules& rules = *new FolderRules{
      {"common/base", {}},
      {"common/config", {"common/base", "proto"}},
      {"common/platform", {"common/base"}},
      {"common/observe", {"common/base"}},
      {"common/rpc", {"common/base", "common/observe", "proto"}},
      {"coordinator/core", {"common/base", "proto"}},
      {"coordinator/journal", {"common/base", "coordinator/core", "proto"}},
      {"coordinator/launcher", {"common/base", "common/config", "proto"}},
      {"coordinator/loop",
       {"common/base", "common/config", "common/observe", "coordinator/core", "coordinator/journal",
        "coordinator/launcher", "proto"}},
      {"coordinator/service",
       {"common/base", "common/config", "common/platform", "common/observe", "common/rpc",
        "coordinator/core", "coordinator/journal", "coordinator/launcher", "coordinator/loop",
        "proto"}},
      {"coordinator/ctl",
       {"common/base", "common/config", "common/platform", "common/observe", "common/rpc",
        "proto"}},
  };
  static const std::vector<std::string> worker{
      "formats", "tensor", "kernels",   "ops",    "model", "data", "collective",
      "control", "sync",   "optimizer", "memory", "state", "task", "train"};
  // A room of the worker may include those before it.
  static const bool filled = [] {
    std::set<std::string> before{"common/base",     "common/config", "common/observe",
                                 "common/platform", "common/rpc",    "proto"};
    for (const std::string& room : worker) {
      rules["worker/" + room] = before;
      before.insert("worker/" + room);
    }
    rules["worker/kernels/cuda"] = {"worker/kernels"};
    return true;
  }();
  (void)filled;
  return rules;
}

struct LibraryRule {
  std::string name;
  std::regex include;
  std::set<std::string> folders;
};

// Third-party headers and the folders that may include them.
const std::vector<LibraryRule>& LibraryRules() {
  static const std::vector<LibraryRule>& rules = *new std::vector<LibraryRule>{
      {"LibTorch",
       std::regex(R"([<"](torch|ATen|c10)/)"),
       {"worker", "worker/tensor", "worker/kernels", "worker/ops", "worker/model", "worker/sync",
        "worker/optimizer", "worker/memory", "worker/state", "worker/task", "worker/train"}},
      {"MPI", std::regex(R"([<"]mpi\.h)"), {"worker/collective"}},
      {"gRPC",
       std::regex(R"([<"](grpcpp|grpc)/|\.grpc\.pb\.h)"),
       {"common/rpc", "coordinator/service", "coordinator/ctl", "worker/control"}},
      {"prometheus-cpp", std::regex(R"([<"]prometheus/)"), {"coordinator/service"}},
      {"SQLite", std::regex(R"([<"]sqlite3)"), {"coordinator/journal"}},
      {"yaml-cpp", std::regex(R"([<"]yaml-cpp/)"), {"common/config"}},
      {"spdlog", std::regex(R"([<"]spdlog/)"), {"common/observe"}},
      {"oneDNN", std::regex(R"([<"](dnnl|oneapi)[./])"), {"worker/kernels"}},
  };
  return rules;
}

std::string FailureAt(const SourceFile& file, size_t line) {
  return file.path + ":" + std::to_string(line + 1) + ": " + file.lines[line];
}

bool IsTest(const SourceFile& file) { return StartsWith(file.path, "tests/"); }

TEST(IncludeRules, FoldersIncludeOnlyFoldersBelowThem) {
  static const std::regex include(
      R"re(^#include "((common|coordinator|worker|tests|espalier)/.*)")re");
  for (const SourceFile* file : CppFiles()) {
    const std::string folder = FolderOf(file->path);
    const auto rule = ProjectIncludes().find(folder);
    if (IsTest(*file) || rule == ProjectIncludes().end()) continue;
    for (size_t i = 0; i < file->lines.size(); ++i) {
      std::smatch match;
      if (!std::regex_search(file->lines[i], match, include)) continue;
      const std::string path = match[1];
      const std::string target = StartsWith(path, "espalier/v1/") ? "proto" : FolderOf(path);
      EXPECT_TRUE(target == folder || rule->second.count(target)) << FailureAt(*file, i);
    }
  }
}

TEST(IncludeRules, EveryLibraryStaysInItsFolders) {
  for (const SourceFile* file : CppFiles()) {
    if (IsTest(*file)) continue;
    for (size_t i = 0; i < file->lines.size(); ++i) {
      if (!StartsWith(file->lines[i], "#include")) continue;
      for (const LibraryRule& rule : LibraryRules()) {
        if (!std::regex_search(file->lines[i], rule.include)) continue;
        EXPECT_TRUE(rule.folders.count(FolderOf(file->path)))
            << rule.name << " is not for this folder: " << FailureAt(*file, i);
      }
    }
  }
}

TEST(IncludeRules, MpiIsIncludedInOneFile) {
  std::set<std::string> files;
  for (const SourceFile* file : CppFiles()) {
    if (IsTest(*file)) continue;
    for (const std::string& line : file->lines) {
      if (StartsWith(line, "#include <mpi.h>")) files.insert(file->path);
    }
  }
  EXPECT_LE(files.size(), 1u) << "mpi.h belongs in one .cc of worker/collective";
}

TEST(IncludeRules, TheCoreIsPure) {
  static const std::regex impure(
      R"(#include ["<](thread|mutex|chrono|fstream|iostream|condition_variable|filesystem|unistd\.h|common/observe|common/base/clock|absl/time/clock|absl/synchronization|espalier/v1/(worker|operator|cluster)))");
  for (const SourceFile* file : CppFiles()) {
    if (FolderOf(file->path) != "coordinator/core") continue;
    for (size_t i = 0; i < file->lines.size(); ++i) {
      EXPECT_FALSE(std::regex_search(file->lines[i], impure)) << FailureAt(*file, i);
    }
  }
}

TEST(IncludeRules, TimeIsReadInOneFile) {
  static const std::regex now(R"(::now\(\)|absl::Now\(\)|\btime\((NULL|nullptr|0)\))");
  for (const SourceFile* file : CppFiles()) {
    if (IsTest(*file) || file->path == "common/base/clock.cc") continue;
    for (size_t i = 0; i < file->lines.size(); ++i) {
      EXPECT_FALSE(std::regex_search(file->lines[i], now)) << FailureAt(*file, i);
    }
  }
}

}  // namespace
}  // namespace espalier::lint
