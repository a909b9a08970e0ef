#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "common/base/file_system.h"
#include "common/base/shared_segment.h"

namespace espalier {

int SyncDescriptor(int descriptor) { return fsync(descriptor) == 0 ? 0 : errno; }

int ReserveDescriptor(int descriptor, int64_t begin, int64_t size) {
  while (true) {
    const int error = posix_fallocate(descriptor, begin, size);
    if (error != EINTR) return error;
  }
}

}  // namespace espalier
