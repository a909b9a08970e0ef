#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "common/base/file_system.h"
#include "common/base/shared_segment.h"

namespace espalier {

// fsync on macOS only hands the data to the drive; F_FULLFSYNC waits until the drive has stored it.
// File systems without it (network volumes) answer ENOTSUP or EINVAL: fsync is all they have.
int SyncDescriptor(int descriptor) {
  if (fcntl(descriptor, F_FULLFSYNC) == 0) return 0;
  if (errno != ENOTSUP && errno != EINVAL && errno != ENOTTY) return errno;
  return fsync(descriptor) == 0 ? 0 : errno;
}

// Shared memory is ordinary memory there, which may be swapped: nothing can be reserved.
int ReserveDescriptor(int, int64_t, int64_t) { return 0; }

}  // namespace espalier
