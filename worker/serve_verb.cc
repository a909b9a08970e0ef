#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <random>
#include <thread>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/clock.h"
#include "common/base/file_system.h"
#include "common/base/status_macros.h"
#include "common/observe/log.h"
#include "common/platform/platform.h"
#include "worker/chat/chat_template.h"
#include "worker/open_model.h"
#include "worker/serve/openai_server.h"
#include "worker/verbs.h"

namespace espalier {
namespace {

// Calls `stop` on a thread of its own at the first SIGTERM or SIGINT; the second one ends the
// process.
class SignalWatch {
 public:
  explicit SignalWatch(std::function<void()> stop) {
    if (pipe(pipe_) != 0) return;
    thread_ = std::thread([stop = std::move(stop)] {
      char byte = 0;
      if (read(pipe_[0], &byte, 1) == 1 && byte == kSignal) stop();
    });
    struct sigaction action = {};
    action.sa_handler = [](int) {
      if (seen_.exchange(true)) _exit(1);
      [[maybe_unused]] const auto written = write(pipe_[1], &kSignal, 1);
    };
    action.sa_flags = SA_RESTART;  // it may be the thread that reads
    sigaction(SIGTERM, &action, nullptr);
    sigaction(SIGINT, &action, nullptr);
  }
  ~SignalWatch() {
    if (!thread_.joinable()) return;
    [[maybe_unused]] const auto written = write(pipe_[1], &kEnd, 1);
    thread_.join();
  }
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

 private:
  static constexpr char kSignal = 's', kEnd = 'e';
  static inline int pipe_[2] = {-1, -1};
  static inline std::atomic<bool> seen_ = false;
  std::thread thread_;
};

absl::Status TakeKey(ServeCommand& command) {
  if (command.api_key_file.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::string text,
                   PosixFileSystem().Read(command.api_key_file, /*limit=*/4096));
  command.api_key = std::string(absl::StripAsciiWhitespace(text));
  if (!command.api_key.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--api-key-file: ", command.api_key_file, " holds no key"));
}

// RESOURCE_EXHAUSTED where the keys and values of so many answers do not fit into what is free, of
// which a graphics processor with memory of its own knows more.
absl::Status CheckRoom(const ServeCommand& command, const OpenedModel& opened, int64_t positions) {
  if (opened.decoder->device().is_cuda()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const MachineMemory memory, ReadMachineMemory());
  const auto element =
      static_cast<int64_t>(torch::elementSize(opened.model->parameters.Head().scalar_type()));
  const auto bytes = [&](int64_t rows) {
    return KeyValueCache::Bytes(opened.config(), {.rows = rows, .positions = positions}, element);
  };
  if (bytes(command.rows) <= memory.available_bytes) return absl::OkStatus();
  const int64_t fitting = memory.available_bytes / std::max<int64_t>(1, bytes(1));
  return absl::ResourceExhaustedError(absl::StrFormat(
      "--batch %d answers of --context %d tokens need %.1f GB for what was read, and %.1f GB are "
      "free; allowed now: %sa shorter --context, or --precision bf16",
      command.rows, positions, static_cast<double>(bytes(command.rows)) / 1e9,
      static_cast<double>(memory.available_bytes) / 1e9,
      fitting > 0 ? absl::StrCat("--batch ", fitting, ", ") : ""));
}

uint64_t RandomSeed() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) | device();
}

// The folder's own name: the checkpoint's, where it is one.
std::string NameOf(const std::string& folder) {
  std::filesystem::path path = std::filesystem::absolute(folder).lexically_normal();
  return path.has_filename() ? path.filename().string() : path.parent_path().filename().string();
}

}  // namespace

absl::Status RunServe(ServeCommand command) {
  RETURN_IF_ERROR(TakeKey(command));
  ASSIGN_OR_RETURN(const OpenedModel opened, OpenDecoder(command.place));
  const int64_t positions = std::min(command.context, opened.config().max_position_embeddings);
  RETURN_IF_ERROR(CheckRoom(command, opened, positions));
  ASSIGN_OR_RETURN(
      const std::unique_ptr<GenerationService> service,
      GenerationService::Create(*opened.decoder, *opened.tokenizer,
                                {.batch = {.rows = command.rows, .positions = positions},
                                 .most_waiting = command.most_waiting}));
  absl::StatusOr<ChatTemplate> chat = ChatTemplateOf(*opened.tokenizer);
  if (!chat.ok()) LogWarning(absl::StrCat("no chat completions: ", chat.status().message()));
  const std::string name = command.name.empty() ? NameOf(opened.folder) : command.name;
  OpenAiServer openai(
      *service, *opened.tokenizer, std::move(chat),
      {.model = name, .positions = positions, .stop_ids = opened.stop_ids, .seed = RandomSeed()},
      RealClock());
  // A thread for each request that is being answered or waits, and some to refuse others.
  constexpr int kSpareThreads = 16;
  ASSIGN_OR_RETURN(const std::unique_ptr<HttpServer> http,
                   HttpServer::Listen(
                       {.host = command.host,
                        .port = command.port,
                        .api_key = command.api_key,
                        .threads = static_cast<int>(std::min<int64_t>(
                            command.rows + command.most_waiting + kSpareThreads, 512))},
                       [&](const HttpRequest& request) { return openai.Handle(request); },
                       OpenAiServer::Refuse));
  const SignalWatch watch([&] { service->Stop(); });
  http->Start();
  const bool brackets = command.host.find(':') != std::string::npos;
  std::printf("serving '%s' at http://%s:%d/v1\n", name.c_str(),
              (brackets ? absl::StrCat("[", command.host, "]") : command.host).c_str(),
              http->port());
  std::fflush(stdout);
  const absl::Status status = service->Run();
  service->Stop();
  http->Stop();
  return status;
}

}  // namespace espalier
