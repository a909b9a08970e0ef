#include "worker/collective/mpi_world.h"

#include <mpi.h>

#include <csignal>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace espalier {
namespace {

struct Message {
  int peer;
  MpiMessages::Done done;
  int64_t received = 0;  // bytes, when it has come
};

absl::Status FromCode(int code, absl::string_view call) {
  if (code == MPI_SUCCESS) return absl::OkStatus();
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  return absl::UnavailableError(
      absl::StrCat(call, " failed: ", absl::string_view(text, static_cast<size_t>(length))));
}

MpiThreads ThreadsOf(int level) {
  if (level >= MPI_THREAD_MULTIPLE) return MpiThreads::kMultiple;
  if (level >= MPI_THREAD_SERIALIZED) return MpiThreads::kSerialized;
  return level >= MPI_THREAD_FUNNELED ? MpiThreads::kFunneled : MpiThreads::kSingle;
}

// Opens every TCP link between every two ranks, from one end only: when both ends of several links
// connect at the same time, Open MPI 4.1 pairs the wrong ends and waits for ever. Small messages go
// over the first link; the receiver of large ones opens the others in turn to ask for the bytes. So
// lower ranks send a few large messages to higher ones, and nobody goes on before they are over.
// This communicator returns no errors: a failure ends the process.
void OpenConnections(const MpiWorld& world) {
  constexpr int kBytes = 256 << 10;  // above the eager limit and the least size that is striped
  int rank = 0, size = 0, links = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const absl::StatusOr<std::string> given = world.Parameter("btl_tcp_links");
  if (!given.ok() || !absl::SimpleAtoi(*given, &links)) links = 1;
  const std::vector<char> zeros(kBytes);
  std::vector<std::vector<char>> received;
  std::vector<MPI_Request> requests;
  for (int i = 0; i < 2 * links; ++i) {
    for (int peer = 0; peer < size; ++peer) {
      if (peer == rank) continue;
      MPI_Request& request = requests.emplace_back(MPI_REQUEST_NULL);
      if (peer < rank) {
        char* to = received.emplace_back(kBytes).data();
        MPI_Irecv(to, kBytes, MPI_CHAR, peer, 0, MPI_COMM_WORLD, &request);
      } else {
        MPI_Isend(zeros.data(), kBytes, MPI_CHAR, peer, 0, MPI_COMM_WORLD, &request);
      }
    }
  }
  MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE);
}

}  // namespace

// The messages that came from one rank since TakeArrivals: those after the first, and their time.
struct Window {
  double first = 0;  // MPI_Wtime; 0: none has come
  double last = 0;
  int64_t bytes = 0;

  void Add(double now, int64_t arrived) {
    if (first == 0) {
      first = last = now;
    } else {
      last = now;
      bytes += arrived;
    }
  }
};

struct MpiMessages::State {
  MPI_Comm comm = MPI_COMM_NULL;
  // Parallel arrays: MPI_Testsome wants the requests side by side.
  std::vector<MPI_Request> requests;
  std::vector<Message> messages;
  std::vector<int> completed;
  std::vector<MPI_Status> statuses;  // of those
  std::vector<Window> windows;       // per rank
  absl::Status failure;

  void Add(MPI_Request request, int code, absl::string_view call, Message message) {
    if (code != MPI_SUCCESS) {
      if (failure.ok()) failure = FromCode(code, call);
      return;
    }
    requests.push_back(request);
    messages.push_back(std::move(message));
  }
};

struct MpiWorld::State {
  MPI_Comm comm = MPI_COMM_NULL;
  bool finished = false;
};

MpiMessages::MpiMessages(int rank, int size)
    : Messages(rank, size), state_(std::make_unique<State>()) {}
MpiMessages::~MpiMessages() = default;
MpiWorld::MpiWorld() : state_(std::make_unique<State>()) {}
MpiWorld::~MpiWorld() = default;

absl::Status CheckMpiThreads(MpiThreads given, absl::string_view library) {
  switch (given) {
    case MpiThreads::kSingle:
      return absl::FailedPreconditionError(
          absl::StrCat("the MPI library gives MPI_THREAD_SINGLE where MPI_THREAD_FUNNELED or more "
                       "is needed (the ",
                       "worker has several threads, one of which calls MPI): ", library,
                       "; use a library that was built with support for threads"));
    case MpiThreads::kFunneled:
    case MpiThreads::kSerialized:
    case MpiThreads::kMultiple:
      return absl::OkStatus();
  }
  return absl::InternalError("no such level of threads");
}

absl::StatusOr<std::unique_ptr<MpiWorld>> MpiWorld::Start() {
  // Open MPI writes to sockets whose other end may be gone: an error, not the end of the process.
  std::signal(SIGPIPE, SIG_IGN);
  // Never ended again: Open MPI 4.1 crashes in MPI_T_finalize after MPI_Finalize.
  int given = MPI_THREAD_SINGLE;
  MPI_T_init_thread(MPI_THREAD_FUNNELED, &given);
  if (const int code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &given);
      code != MPI_SUCCESS) {
    return FromCode(code, "MPI_Init_thread");
  }
  RETURN_IF_ERROR(CheckMpiThreads(ThreadsOf(given), LibraryVersion()));
  std::unique_ptr<MpiWorld> world(new MpiWorld);
  OpenConnections(*world);
  if (const int code = MPI_Comm_dup(MPI_COMM_WORLD, &world->state_->comm); code != MPI_SUCCESS) {
    return FromCode(code, "MPI_Comm_dup");
  }
  MPI_Comm_set_errhandler(world->state_->comm, MPI_ERRORS_RETURN);
  MPI_Comm_rank(world->state_->comm, &world->rank_);
  MPI_Comm_size(world->state_->comm, &world->size_);
  return world;
}

std::string MpiWorld::LibraryVersion() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  MPI_Get_library_version(text, &length);
  return std::string(text, static_cast<size_t>(length));
}

std::unique_ptr<MpiMessages> MpiWorld::NewMessages() {
  std::unique_ptr<MpiMessages> messages(new MpiMessages(rank_, size_));
  messages->state_->comm = state_->comm;
  messages->state_->windows.resize(size_);
  return messages;
}

void MpiWorld::Progress() {
  int found = 0;
  MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, state_->comm, &found, MPI_STATUS_IGNORE);
}

void MpiMessages::Send(absl::Span<const std::byte> bytes, int peer, int tag, Done done) {
  MPI_Request request = MPI_REQUEST_NULL;
  const int code = MPI_Isend(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, peer, tag,
                             state_->comm, &request);
  state_->Add(request, code, "MPI_Isend", {peer, std::move(done)});
}

void MpiMessages::Receive(absl::Span<std::byte> bytes, int peer, int tag, Done done) {
  MPI_Request request = MPI_REQUEST_NULL;
  const int code = MPI_Irecv(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, peer, tag,
                             state_->comm, &request);
  state_->Add(request, code, "MPI_Irecv",
              {peer, std::move(done), static_cast<int64_t>(bytes.size())});
}

absl::StatusOr<int> MpiMessages::Poll() {
  State& state = *state_;
  if (!state.failure.ok()) return state.failure;
  if (state.requests.empty()) return 0;
  state.completed.resize(state.requests.size());
  state.statuses.resize(state.requests.size());
  int count = 0;
  const int code = MPI_Testsome(static_cast<int>(state.requests.size()), state.requests.data(),
                                &count, state.completed.data(), state.statuses.data());
  if (code != MPI_SUCCESS) state.failure = FromCode(code, "MPI_Testsome");
  std::vector<Done> done;
  const double now = count > 0 ? MPI_Wtime() : 0;
  for (int i = 0; i < count; ++i) {
    // One message's failure is no reason to forget what others brought, which may be its cause.
    if (code != MPI_SUCCESS && state.statuses[i].MPI_ERROR != MPI_SUCCESS) continue;
    Message& message = state.messages[state.completed[i]];
    done.push_back(std::move(message.done));
    if (message.received > 0) state.windows[message.peer].Add(now, message.received);
  }
  size_t kept = 0;
  for (size_t i = 0; i < state.requests.size(); ++i) {
    if (state.requests[i] == MPI_REQUEST_NULL) continue;
    state.requests[kept] = state.requests[i];
    if (kept != i) state.messages[kept] = std::move(state.messages[i]);
    ++kept;
  }
  state.requests.resize(kept);
  state.messages.erase(state.messages.begin() + static_cast<int64_t>(kept), state.messages.end());
  for (const Done& callback : done) callback();
  if (!state.failure.ok()) return state.failure;
  return count;
}

int64_t MpiMessages::pending() const { return static_cast<int64_t>(state_->requests.size()); }

// Little data says more about delays than about bandwidth.
std::vector<Arrivals> MpiMessages::TakeArrivals() {
  constexpr int64_t kMeasurable = 1 << 20;
  std::vector<Arrivals> arrivals;
  for (Window& window : state_->windows) {
    const double seconds = window.last - window.first;
    const bool measured = seconds > 0 && window.bytes >= kMeasurable;
    arrivals.push_back(measured ? Arrivals{window.bytes, seconds} : Arrivals{});
    window = {};
  }
  return arrivals;
}

std::set<int> MpiMessages::PendingPeers() const {
  std::set<int> peers;
  for (const Message& message : state_->messages) peers.insert(message.peer);
  return peers;
}

void MpiMessages::CancelAll() {
  for (MPI_Request& request : state_->requests) {
    MPI_Cancel(&request);
    MPI_Request_free(&request);
  }
  state_->requests.clear();
  state_->messages.clear();
}

absl::StatusOr<std::string> MpiWorld::Parameter(absl::string_view name) const {
  int index = 0;
  if (MPI_T_cvar_get_index(std::string(name).c_str(), &index) != MPI_SUCCESS) {
    return absl::NotFoundError(absl::StrCat("Open MPI has no parameter '", name, "'"));
  }
  int verbosity = 0, bind = 0, scope = 0, count = 0;
  MPI_Datatype type = MPI_DATATYPE_NULL;
  MPI_T_enum enumeration = MPI_T_ENUM_NULL;
  MPI_T_cvar_handle handle = MPI_T_CVAR_HANDLE_NULL;
  if (MPI_T_cvar_get_info(index, nullptr, nullptr, &verbosity, &type, &enumeration, nullptr,
                          nullptr, &bind, &scope) != MPI_SUCCESS ||
      MPI_T_cvar_handle_alloc(index, nullptr, &handle, &count) != MPI_SUCCESS) {
    return absl::InternalError(absl::StrCat("MPI_T cannot read '", name, "'"));
  }
  std::string value;
  if (type == MPI_CHAR) {
    std::vector<char> text(static_cast<size_t>(count) + 1, '\0');
    MPI_T_cvar_read(handle, text.data());
    value = text.data();
  } else if (type == MPI_INT || type == MPI_UNSIGNED) {
    int number = 0;
    MPI_T_cvar_read(handle, &number);
    value = absl::StrCat(number);
  } else {
    int64_t number = 0;  // unsigned long and the like
    MPI_T_cvar_read(handle, &number);
    value = absl::StrCat(number);
  }
  MPI_T_cvar_handle_free(&handle);
  return value;
}

void MpiWorld::Finish() {
  ESPALIER_CHECK(!state_->finished, "MPI is ended once");
  state_->finished = true;
  MPI_Comm_free(&state_->comm);
  MPI_Finalize();
}

}  // namespace espalier
