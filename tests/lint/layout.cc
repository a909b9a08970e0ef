// The table of rooms. A new folder, root file or library comes in here, in the order in which
// folders depend on each other.
#include "tests/lint/rooms.h"

namespace espalier::lint {
namespace {

Part Common() {
  return {.folder = "common",
          .rooms = {
              {.folder = "proto"},
              {.folder = "common/cmake"},
              {.folder = "common/base", .libraries = {"OpenSSL"}, .closed = {"proto"}},
              {.folder = "common/platform", .libraries = {"libsystemd"}, .closed = {"proto"}},
              {.folder = "common/observe", .libraries = {"spdlog"}, .closed = {"proto"}},
              {.folder = "common/config", .libraries = {"yaml-cpp"}},
              {.folder = "common/rpc",
               .libraries = {"gRPC", "OpenSSL"},
               .closed = {"common/config", "common/platform"}},
          }};
}

Part Coordinator() {
  return {.folder = "coordinator",
          .rooms =
              {
                  {.folder = "coordinator/planner",
                   .closed = {"common/platform", "common/observe", "common/config", "common/rpc"}},
                  {.folder = "coordinator/core",
                   .closed = {"common/platform", "common/observe", "common/config", "common/rpc"}},
                  {.folder = "coordinator/journal",
                   .libraries = {"SQLite"},
                   .closed = {"common/platform", "common/observe", "common/config", "common/rpc"}},
                  {.folder = "coordinator/launcher",
                   .closed = {"common/rpc", "coordinator/planner", "coordinator/core",
                              "coordinator/journal"}},
                  {.folder = "coordinator/loop", .closed = {"common/platform", "common/rpc"}},
                  {.folder = "coordinator/service", .libraries = {"gRPC", "prometheus-cpp"}},
                  {.folder = "coordinator/agent",
                   .libraries = {"gRPC", "CLI11"},
                   .closed = {"coordinator/planner", "coordinator/core", "coordinator/journal",
                              "coordinator/loop", "coordinator/service"}},
                  {.folder = "coordinator/ctl",
                   .libraries = {"gRPC", "CLI11", "nlohmann-json"},
                   .closed = {"coordinator/planner", "coordinator/core", "coordinator/journal",
                              "coordinator/launcher", "coordinator/loop", "coordinator/service",
                              "coordinator/agent"}},
              },
          .root_files = {"agent_main", "espalier_main", "espalierd_main"},
          .root_libraries = {"gRPC", "CLI11"}};
}

Part Worker() {
  const std::set<std::string> torch{"LibTorch"};
  return {
      .folder = "worker",
      .rooms =
          {
              {.folder = "worker/formats", .libraries = {"nlohmann-json"}},
              {.folder = "worker/tokenizer", .libraries = {"nlohmann-json", "PCRE2", "utf8proc"}},
              {.folder = "worker/chat", .libraries = {"nlohmann-json"}},
              {.folder = "worker/tensor", .libraries = {"LibTorch", "CUDA"}},
              {.folder = "worker/kernels", .libraries = {"LibTorch", "oneDNN"}},
              {.folder = "worker/kernels/cuda", .libraries = {"CUDA"}},
              {.folder = "worker/ops", .libraries = {"LibTorch", "CUDA"}},
              {.folder = "worker/model", .libraries = {"LibTorch", "nlohmann-json"}},
              {.folder = "worker/generation", .libraries = torch},
              {.folder = "worker/data", .libraries = {"nlohmann-json"}},
              {.folder = "worker/reward", .libraries = {"nlohmann-json"}},
              {.folder = "worker/collective", .libraries = {"MPI"}, .closed = {"proto"}},
              {.folder = "worker/control", .libraries = {"gRPC"}, .closed = {"worker/collective"}},
              {.folder = "worker/optimizer", .libraries = torch},
              {.folder = "worker/sync", .libraries = torch},
              {.folder = "worker/memory", .libraries = {"LibTorch", "jemalloc"}},
              {.folder = "worker/state", .libraries = {"LibTorch", "nlohmann-json"}},
              {.folder = "worker/rollout", .libraries = {"LibTorch", "nlohmann-json"}},
              {.folder = "worker/task", .libraries = {"LibTorch", "nlohmann-json"}},
              {.folder = "worker/train", .libraries = torch},
              {.folder = "worker/serve",
               .libraries = {"LibTorch", "nlohmann-json", "cpp-httplib"},
               .closed = {"worker/collective", "worker/control", "worker/optimizer", "worker/sync",
                          "worker/memory", "worker/state", "worker/rollout", "worker/task",
                          "worker/train"}},
          },
      .root_files = {"chat_verb", "command_line", "data_verb", "export_verb", "generate_verb",
                     "generation_options", "make_data_verb", "open_model", "rehearse_verb",
                     "self_test_verb", "serve_verb", "job_inputs", "ending", "launch_environment",
                     "main", "run", "session", "verbs"},
      .root_libraries = {"LibTorch", "gRPC", "CLI11", "nlohmann-json"}};
}

}  // namespace

const Layout& EspalierLayout() {
  static const Layout& layout = *new Layout{Common(), Coordinator(), Worker()};
  return layout;
}

}  // namespace espalier::lint
