#include "worker/state/warm_state.h"

#include "worker/state/warm_copies.h"
#include "worker/state/warm_in_place.h"

namespace espalier {

absl::StatusOr<std::unique_ptr<WarmState>> WarmState::Open(const WarmPlace& place,
                                                           const RunIdentity& identity,
                                                           Replica& replica) {
  if (replica.parameters().flat().is_cpu()) return WarmInPlace::Open(place, identity, replica);
  return WarmCopies::Open(place, identity, replica, RealClock());
}

}  // namespace espalier
