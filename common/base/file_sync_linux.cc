#include <unistd.h>

#include <cerrno>

#include "common/base/file_system.h"

namespace espalier {

int SyncDescriptor(int descriptor) { return fsync(descriptor) == 0 ? 0 : errno; }

}  // namespace espalier
