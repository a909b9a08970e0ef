#include "worker/state/start_state.h"

#include <algorithm>
#include <array>
#include <compare>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "common/observe/log.h"
#include "worker/model/adapter_files.h"
#include "worker/model/pretrained.h"
#include "worker/state/replica_checkpoint.h"
#include "worker/state/trainer_state.h"
#include "worker/tensor/torch_compat.h"

namespace espalier {
namespace {

// Bytes of one broadcast: small enough to show progress several times a second.
constexpr size_t kPieceBytes = size_t{16} << 20;

std::string InitialOrigin(const v1::JobSpec& spec) {
  if (spec.model().has_from()) return absl::StrCat("weights of ", spec.model().from());
  return absl::StrCat("initial weights, seed ", spec.train().seed());
}

absl::StatusOr<std::optional<Checkpoint>> FindNewest(const CheckpointStore& store) {
  ASSIGN_OR_RETURN(FoundCheckpoint found, store.FindNewest());
  for (const RejectedCheckpoint& rejected : found.rejected) {
    LogWarning(absl::StrCat("passed over ", rejected.folder, ": ", rejected.reason.message()));
  }
  return std::move(found.newest);
}

// Nothing is verified, nor told, where the newest of the folder is older than what some rank has in
// memory: all would wait while a state is read that none of them begins with.
absl::StatusOr<std::optional<Checkpoint>> FindMine(const RankContext& context,
                                                   const CheckpointStore& store,
                                                   const StartOptions& options) {
  const bool warm = options.warm != nullptr && options.warm->found();
  ASSIGN_OR_RETURN(const std::vector<int64_t> in_memory,
                   GatherValues(context.collective, warm ? options.warm->found()->step : -1));
  const Step newest(*std::max_element(in_memory.begin(), in_memory.end()));
  std::optional<Checkpoint> mine;
  bool verified = false;
  const auto find = [&]() -> absl::Status {
    ASSIGN_OR_RETURN(const std::vector<CheckpointStore::Entry> there, store.List());
    verified = newest < Step(0) || (!there.empty() && there.back().step >= newest);
    if (!verified) return absl::OkStatus();
    ASSIGN_OR_RETURN(mine, FindNewest(store));
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(RunTogether(context, [&]() -> absl::Status {
    const absl::Status found = find();
    if (found.ok() || context.collective.rank() == Rank(0)) return found;
    // One that has no folder holds nothing.
    LogWarning(absl::StrCat("no checkpoint is read here: ", found.message()));
    verified = true;
    return absl::OkStatus();
  }));
  if (verified && options.on_found) {
    options.on_found(mine ? mine->step() : Step(0), mine ? mine->folder() : "");
  }
  return mine;
}

absl::Status BroadcastTensor(const RankContext& context, torch::Tensor tensor, Rank root) {
  // After an error the exchange may still use it, so it is left.
  auto host = std::make_unique<torch::Tensor>();
  RETURN_IF_ERROR(CatchTorch("copying the state from the device", [&] { *host = tensor.cpu(); }));
  absl::Span<std::byte> bytes(static_cast<std::byte*>(host->data_ptr()), host->nbytes());
  while (!bytes.empty()) {
    const absl::Span<std::byte> piece = bytes.subspan(0, kPieceBytes);
    if (absl::Status sent = context.collective.Broadcast(piece, root); !sent.ok()) {
      host.release();
      return sent;
    }
    context.progress.Worked();
    bytes.remove_prefix(piece.size());
  }
  if (tensor.is_cpu()) return absl::OkStatus();
  torch::NoGradGuard no_grad;
  return CatchTorch("copying the state to the device", [&] { tensor.copy_(*host); });
}

// Takes part in a broadcast of so many bytes, and drops them: this rank has the same.
absl::Status PassOn(const RankContext& context, size_t bytes, Rank root) {
  auto piece = std::make_unique<std::vector<std::byte>>(std::min(bytes, kPieceBytes));
  while (bytes > 0) {
    const absl::Span<std::byte> part = absl::MakeSpan(*piece).subspan(0, bytes);
    if (absl::Status sent = context.collective.Broadcast(part, root); !sent.ok()) {
      static_cast<void>(piece.release());  // the exchange may still write there
      return sent;
    }
    context.progress.Worked();
    bytes -= part.size();
  }
  return absl::OkStatus();
}

// What becomes of the bits that a rank gets: one that has the same keeps its own, which memory that
// outlives it holds as a state all the while.
enum class Receives { kReplica, kWhatItHas };

absl::Status BroadcastReplica(const RankContext& context, Rank root, Receives mine,
                              Replica& replica) {
  RETURN_IF_ERROR(BroadcastValue(context.collective, replica.counters(), root));
  replica.optimizer().set_updates(replica.counters().updates);
  for (const torch::Tensor& buffer : replica.Buffers()) {
    RETURN_IF_ERROR(mine == Receives::kReplica ? BroadcastTensor(context, buffer, root)
                                               : PassOn(context, buffer.nbytes(), root));
  }
  if (replica.residual().kept()) {
    RETURN_IF_ERROR(BroadcastTensor(context, replica.residual().values(), root));
  }
  return CatchTorch("narrowing the weights", [&] { replica.parameters().RefreshCopy(); });
}

// What is frozen is never sent: it must be the same from the beginning.
absl::Status CheckSameBase(const RankContext& context, Replica& replica) {
  uint64_t mine = 0;
  RETURN_IF_ERROR(RunTogether(context, [&] {
    return CatchTorch("hashing the frozen parameters", [&] { mine = replica.FrozenFingerprint(); });
  }));
  ASSIGN_OR_RETURN(const std::vector<uint64_t> all, GatherValues(context.collective, mine));
  const auto other = std::find_if(all.begin(), all.end(), [&](uint64_t h) { return h != all[0]; });
  if (other == all.end()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("rank ", other - all.begin(),
                   " and rank 0 have different values in the parameters that are not trained (by "
                   "train.freeze, or under train.lora); copy the folder of model.from from one "
                   "node to the others"));
}

// How a rank computes, and how the state was computed that it is about to load.
struct Kind {
  std::array<char, kComputedByBytes> own{};
  std::array<char, kComputedByBytes> of_state{};
};

// Libraries divide a product by device, threads and processor, and one that is divided otherwise
// adds in another order. How the state was computed decides; of one that does not say, rank 0.
absl::Status CheckSameKind(const RankContext& context, const std::string& own,
                           const std::string& of_state, int64_t step) {
  Kind mine;
  absl::SNPrintF(mine.own.data(), mine.own.size(), "%s", own);
  absl::SNPrintF(mine.of_state.data(), mine.of_state.size(), "%s", of_state);
  ASSIGN_OR_RETURN(const std::vector<Kind> all, GatherValues(context.collective, mine));
  const auto known = std::find_if(all.begin(), all.end(),
                                  [](const Kind& kind) { return kind.of_state[0] != '\0'; });
  const std::string wanted = known == all.end() ? all[0].own.data() : known->of_state.data();
  std::vector<int32_t> others;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (wanted != all[rank].own.data()) others.push_back(static_cast<int32_t>(rank));
  }
  if (others.empty()) return absl::OkStatus();
  const std::string first =
      absl::StrCat(wanted, ", but rank ", others[0], " computes by ", all[others[0]].own.data(),
                   ", which may give other bits; ");
  if (known == all.end()) {
    return WithFailedRanks(absl::FailedPreconditionError(
                               absl::StrCat("train.reproducible is true, and rank 0 computes by ",
                                            first, "train on nodes of one kind (parallel.nodes)")),
                           others);
  }
  return OfTheirNodes(WithFailedRanks(
      absl::FailedPreconditionError(absl::StrCat(
          "train.reproducible is true, and step ", step, " was computed by ", first,
          "go on where that can be had, or with a job that leaves train.reproducible out and has "
          "this one's checkpoint.directory")),
      others));
}

absl::Status TooOld(int64_t newest, const StartOptions& options) {
  const std::string found =
      newest < 0
          ? "no rank of this generation holds any"
          : absl::StrCat("the newest that a rank of this generation holds is of step ", newest);
  return absl::UnavailableError(absl::StrCat("the state of step ", options.least.value(),
                                             " is known to be held (on ", options.least_held_by,
                                             "), and ", found, "; nothing is begun anew"));
}

// What a rank holds of the job; the greatest is the newest.
struct Held {
  int64_t step = -1;      // committed; -1: nothing
  int64_t evaluated = 0;  // the last step whose evaluation is counted in it
  friend auto operator<=>(const Held&, const Held&) = default;
};

// What a rank loads of the newest state; nothing: it holds less, or there is none.
enum class Source : int32_t { kNothing, kMemory, kCheckpoint };

// Of the ranks that hold the newest state, one whose bits most of them have: the lowest.
size_t ChooseSender(const std::vector<Held>& held, const std::vector<uint64_t>& prints) {
  const Held newest = *std::max_element(held.begin(), held.end());
  size_t sender = 0;
  int64_t most = 0;
  for (size_t rank = 0; rank < held.size(); ++rank) {
    int64_t votes = 0;
    for (size_t other = 0; other < held.size(); ++other) {
      votes += held[rank] == newest && held[other] == newest && prints[other] == prints[rank];
    }
    if (votes <= most) continue;
    most = votes;
    sender = rank;
  }
  return sender;
}

// Such a rank has computed, or kept, something wrong; which one is not always the sender.
void TellOfDifferences(const std::vector<Held>& held, const std::vector<uint64_t>& prints,
                       size_t sender) {
  for (size_t rank = 0; rank < held.size(); ++rank) {
    if (held[rank] != held[sender] || prints[rank] == prints[sender]) continue;
    LogWarning(absl::StrCat("rank ", rank, " held other bits of step ", held[rank].step,
                            " than rank ", sender,
                            ", which sends it its own; where that comes again, test the "
                            "memory of both machines"));
  }
}

// What int8 gradients still owe is in checkpoints and in no memory. Whoever begins with memory
// takes it from one who begins with a checkpoint of the same step: else they would differ by it.
absl::Status ShareResidual(const RankContext& context, Source mine, Replica& replica) {
  if (!replica.residual().kept()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::vector<Source> all, GatherValues(context.collective, mine));
  const auto sender = std::find(all.begin(), all.end(), Source::kCheckpoint);
  const bool wanted = std::find(all.begin(), all.end(), Source::kMemory) != all.end();
  if (!wanted || sender == all.end()) return absl::OkStatus();
  return BroadcastTensor(context, replica.residual().values(), Rank(sender - all.begin()));
}

// What a rank holds of the job, and what becomes of it.
class Holdings {
 public:
  Holdings(const RunIdentity& identity, Replica& replica, WarmState* warm,
           const std::optional<Checkpoint>& checkpoint)
      : identity_(identity), replica_(replica), warm_(warm), checkpoint_(checkpoint) {
    if (checkpoint) {
      const Glance glance = GlanceAt(*checkpoint);
      newest_ = {checkpoint->step().value(), glance.evaluated};
      computed_by_ = glance.computed_by;
    }
    if (warm == nullptr || !warm->found()) return;
    const Held in_memory{warm->found()->step, warm->found()->validation.step};
    if (in_memory <= newest_) return;
    newest_ = in_memory;
    computed_by_ = warm->computed_by();
    in_memory_ = true;
  }

  const Held& newest() const { return newest_; }
  const std::string& computed_by() const { return computed_by_; }
  std::string origin() const {
    if (newest_.step < 0) return InitialOrigin(identity_.spec);
    if (in_memory_) return absl::StrCat("warm state of step ", newest_.step);
    return absl::StrCat("checkpoint ", checkpoint_->folder());
  }
  Source source() const {
    if (in_memory_) return Source::kMemory;
    return checkpoint_ ? Source::kCheckpoint : Source::kNothing;
  }
  // Makes it the replica.
  absl::Status Load() {
    if (in_memory_) return warm_->TakeFound();
    Overwrite();
    if (checkpoint_) return LoadReplica(*checkpoint_, identity_, replica_);
    return SetInitialWeights(identity_.spec, replica_);
  }
  // Another state is about to come into the replica.
  void Overwrite() {
    if (warm_ != nullptr) warm_->Clear();
  }

 private:
  const RunIdentity& identity_;
  Replica& replica_;
  WarmState* const warm_;
  const std::optional<Checkpoint>& checkpoint_;
  Held newest_;
  std::string computed_by_;
  bool in_memory_ = false;
};

}  // namespace

namespace {

// Those of train.lora.from, or initial ones.
absl::Status SetInitialAdapters(const v1::JobSpec& spec, Parameters& parameters) {
  const v1::LoraSpec& lora = spec.train().lora();
  if (lora.has_from()) {
    RETURN_IF_ERROR(CheckIfCheckpoint(PosixFileSystem(), lora.from()));
    return LoadAdapter(lora.from(), parameters);
  }
  return CatchTorch("setting the initial adapters",
                    [&] { parameters.InitializeAdapters(spec.train().seed()); });
}

}  // namespace

absl::Status SetInitialWeights(const v1::JobSpec& spec, Replica& replica) {
  replica.counters() = {.loss_scale = LossScale::For(spec.train().precision())};
  replica.slots().Reset();
  Parameters& parameters = replica.parameters();
  if (spec.model().has_from()) {
    RETURN_IF_ERROR(CheckIfCheckpoint(PosixFileSystem(), spec.model().from()));
    RETURN_IF_ERROR(LoadWeights(spec.model().from(), replica.config(), parameters));
  } else {
    RETURN_IF_ERROR(CatchTorch("setting the initial weights", [&] {
      parameters.Initialize(spec.train().seed(), replica.config().initializer_range);
    }));
  }
  if (parameters.lora()) RETURN_IF_ERROR(SetInitialAdapters(spec, parameters));
  return CatchTorch("beginning an average", [&] { replica.optimizer().ResetAverage(); });
}

absl::StatusOr<StartState> AgreeOnStart(const RankContext& context, const CheckpointStore& store,
                                        const RunIdentity& identity, Replica& replica,
                                        const StartOptions& options) {
  ASSIGN_OR_RETURN(const std::optional<Checkpoint> mine, FindMine(context, store, options));
  Holdings held(identity, replica, options.warm, mine);
  ASSIGN_OR_RETURN(const std::vector<Held> all, GatherValues(context.collective, held.newest()));
  const Held newest = *std::max_element(all.begin(), all.end());
  if (std::max<int64_t>(newest.step, 0) < options.least.value()) {
    return TooOld(newest.step, options);
  }
  const bool frozen = replica.has_frozen(), loads = held.newest() == newest;
  if (!identity.computed_by.empty()) {
    RETURN_IF_ERROR(
        CheckSameKind(context, identity.computed_by, loads ? held.computed_by() : "", newest.step));
  }

  RETURN_IF_ERROR(RunTogether(context, [&]() -> absl::Status {
    // Checkpoints, and what ranks send each other, hold what is trained.
    if (frozen && options.warm == nullptr) {
      RETURN_IF_ERROR(SetInitialWeights(identity.spec, replica));
    }
    return loads ? held.Load() : absl::OkStatus();
  }));
  RETURN_IF_ERROR(ShareResidual(context, loads ? held.source() : Source::kNothing, replica));
  uint64_t fingerprint = 0;  // of a rank that holds less: none
  RETURN_IF_ERROR(RunTogether(context, [&] {
    if (loads) fingerprint = replica.Fingerprint();
    return absl::OkStatus();
  }));
  ASSIGN_OR_RETURN(const std::vector<uint64_t> prints,
                   GatherValues(context.collective, fingerprint));
  const size_t root = ChooseSender(all, prints);
  if (context.collective.rank() == Rank(0)) TellOfDifferences(all, prints, root);
  if (std::any_of(prints.begin(), prints.end(), [&](uint64_t p) { return p != prints[root]; })) {
    const Rank sender(static_cast<int64_t>(root));
    const bool has = loads && fingerprint == prints[root];
    if (!has) held.Overwrite();
    const bool sends = context.collective.rank() == sender;
    RETURN_IF_ERROR(BroadcastReplica(
        context, sender, has && !sends ? Receives::kWhatItHas : Receives::kReplica, replica));
  }
  if (frozen) RETURN_IF_ERROR(CheckSameBase(context, replica));
  if (options.warm != nullptr) options.warm->Commit(replica.counters());
  StartState start;
  start.step = replica.step();
  start.received = fingerprint != prints[root];
  start.origin =
      start.received && newest.step >= 0
          ? absl::StrCat("the state of step ", newest.step, ", received from rank ", root)
          : held.origin();
  return start;
}

}  // namespace espalier
