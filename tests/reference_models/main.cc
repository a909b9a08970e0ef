// reference_models [--tolerance X] [--device D] DIR...: exit status 0 when every check of every
// folder passes, 1 otherwise.
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "tests/reference_models/reference_case.h"

namespace espalier {
namespace {

bool RunFolder(const std::string& folder, const ReferenceOptions& options) {
  const auto checks = RunReferenceCase(folder, options);
  if (!checks.ok()) {
    std::printf("FAILED %s: %s\n", folder.c_str(), checks.status().ToString().c_str());
    return false;
  }
  int failed = 0;
  double worst = 0;
  for (const ReferenceCheck& check : *checks) {
    if (check.error > worst) worst = check.error;
    if (check.passed) continue;
    ++failed;
    std::printf("FAILED %s: %s: relative error %.2e, %s\n", folder.c_str(), check.name.c_str(),
                check.error, check.detail.c_str());
  }
  std::printf("%s %s: %zu checks, %d failed, largest relative error %.2e\n",
              failed == 0 ? "PASSED" : "FAILED", folder.c_str(), checks->size(), failed, worst);
  return failed == 0;
}

int Main(const std::vector<std::string>& arguments) {
  ReferenceOptions options;
  bool passed = true;
  int folders = 0;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const bool has_value = i + 1 < arguments.size();
    if (arguments[i] == "--device" && has_value) {
      options.device = arguments[++i];
    } else if (arguments[i] == "--tolerance" && has_value &&
               absl::SimpleAtod(arguments[i + 1], &options.tolerance)) {
      ++i;
    } else {
      ++folders;
      passed = RunFolder(arguments[i], options) && passed;
    }
  }
  if (folders == 0) std::printf("usage: reference_models [--tolerance X] [--device D] DIR...\n");
  return folders > 0 && passed ? 0 : 1;
}

}  // namespace
}  // namespace espalier

int main(int argc, char** argv) { return espalier::Main({argv + 1, argv + argc}); }
