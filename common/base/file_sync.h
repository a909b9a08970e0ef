// How the operating system is told to put a file on stable storage. Used by file_system.cc only.
// Any thread.
#pragma once

namespace espalier {

// 0, or an errno value.
int SyncDescriptor(int descriptor);

}  // namespace espalier
