#include <fcntl.h>
#include <sys/sysctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>

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

// Shared memory is ordinary memory there, which may be swapped: nothing can be reserved, and
// nothing but this refuses what is larger than the machine.
int ReserveDescriptor(int /*descriptor*/, int64_t begin, int64_t size) {
  int64_t machine = 0;
  size_t length = sizeof(machine);
  if (sysctlbyname("hw.memsize", &machine, &length, nullptr, 0) != 0) return errno;
  return size > machine - begin ? ENOMEM : 0;
}

}  // namespace espalier
