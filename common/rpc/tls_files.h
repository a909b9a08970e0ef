// Where a program's TLS identity lies. Used by espalierd, espalier-worker and espalier.
#pragma once

#include <string>

namespace espalier {

// PEM files as `espalier pki` makes them.
struct TlsFiles {
  std::string ca;
  std::string certificate;
  std::string key;
};

}  // namespace espalier
