#include "worker/collective/announcement.h"

#include <type_traits>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"

namespace espalier {
namespace {

static_assert(std::is_trivially_copyable_v<Announcement> && sizeof(Announcement) == 40);

template <typename Byte>
absl::Span<Byte> BytesOf(Announcement& announcement) {
  return {reinterpret_cast<Byte*>(&announcement), sizeof(announcement)};
}

std::string NameOf(WireType wire) {
  switch (wire) {
    case WireType::kFp32:
      return "fp32";
    case WireType::kBf16:
      return "bf16";
    case WireType::kInt8:
      return "int8";
    case WireType::kInt64:
      return "int64";
  }
  return "an unknown type";
}

uint64_t HashOf(const PartEnds& ends) {
  uint64_t hash = 0;
  for (const int64_t end : ends) hash = SplitMix64(hash ^ static_cast<uint64_t>(end)).Next();
  return hash;
}

}  // namespace

std::string Describe(const Announcement& announcement) {
  const std::string wire = NameOf(static_cast<WireType>(announcement.wire));
  switch (static_cast<Operation::Kind>(announcement.kind)) {
    case Operation::Kind::kAllReduce:
      return absl::StrCat("an all-reduce of ", announcement.bytes, " bytes as ", wire);
    case Operation::Kind::kReduceScatter:
      return absl::StrCat("a reduce-scatter of ", announcement.bytes, " bytes as ", wire);
    case Operation::Kind::kAllGather:
      return absl::StrCat("an all-gather of ", announcement.bytes, " bytes");
    case Operation::Kind::kBroadcast:
      return absl::StrCat("a broadcast of ", announcement.bytes, " bytes from rank ",
                          announcement.root);
  }
  return absl::StrCat("an operation of unknown kind ", announcement.kind);
}

Announcements::Announcements(Messages& messages, const Operation& operation, const Layout& layout,
                             int64_t number)
    : messages_(messages),
      mine_({.number = number,
             .bytes = layout.size_bytes(),
             .parts = HashOf(layout.part_ends()),
             .kind = static_cast<int32_t>(operation.kind),
             .wire = static_cast<int32_t>(layout.wire()),
             .root = static_cast<int32_t>(operation.root.value())}),
      theirs_(layout.ranks()),
      one_way_(operation.kind == Operation::Kind::kBroadcast) {}

void Announcements::Exchange() {
  const bool sends = !one_way_ || mine_.root == messages_.rank();
  for (int peer = 0; peer < messages_.size(); ++peer) {
    if (peer == messages_.rank()) continue;
    if (!one_way_ || mine_.root == peer) {
      messages_.Receive(BytesOf<std::byte>(theirs_[peer]), peer, kAnnouncementTag,
                        [this, peer] { Compare(peer); });
    }
    if (sends) messages_.Send(BytesOf<const std::byte>(mine_), peer, kAnnouncementTag, [] {});
  }
}

void Announcements::Compare(int peer) {
  const Announcement& other = theirs_[peer];
  if (other == mine_ || !mismatch_.ok()) return;
  const bool parts_only = Describe(other) == Describe(mine_) && other.number == mine_.number;
  mismatch_ = absl::FailedPreconditionError(
      absl::StrCat("exchange operation ", mine_.number, " of rank ", messages_.rank(), " is ",
                   Describe(mine_), ", operation ", other.number, " of rank ", peer, " is ",
                   Describe(other), parts_only ? " in other parts" : "",
                   "; all ranks must run the same program, with the same job and the same data"));
}

}  // namespace espalier
