// espalier_fuzz --target=NAME [--seeds=FOLDER] LIBFUZZER'S OPTIONS [FOLDER | FILE]...: libFuzzer on
// a target of target.h; a FILE alone is looked at once. `deploy/dev fuzz` starts it.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "tests/fuzz/target.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace {

using espalier::FuzzTarget;

const FuzzTarget* target = nullptr;

[[noreturn]] void End(absl::string_view why) {
  std::fprintf(stderr, "espalier_fuzz: %.*s\n", static_cast<int>(why.size()), why.data());
  std::exit(2);
}

void WriteSeeds(absl::string_view folder) {
  int count = 0;
  for (const std::string& seed : target->seeds()) {
    const std::string path = absl::StrCat(folder, "/seed-", ++count);
    std::ofstream file(path, std::ios::binary);
    file << seed;
    file.close();
    if (!file.good()) End(absl::StrCat("cannot write ", path));
  }
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  absl::string_view name, seeds;
  for (int i = 1; i < *argc; ++i) {
    absl::string_view argument = (*argv)[i];
    if (absl::ConsumePrefix(&argument, "--target=")) name = argument;
    if (absl::ConsumePrefix(&argument, "--seeds=")) seeds = argument;
  }
  std::string names;
  for (const FuzzTarget& one : espalier::FuzzTargets()) {
    if (one.name == name) target = &one;
    absl::StrAppend(&names, " ", one.name);
  }
  if (target == nullptr) End(absl::StrCat("--target is '", name, "'; there are:", names));
  if (!seeds.empty()) WriteSeeds(seeds);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string broken = target->check({reinterpret_cast<const char*>(data), size});
  if (broken.empty()) return 0;
  std::fprintf(stderr, "espalier_fuzz: a rule of %s is broken: %s\n",
               std::string(target->name).c_str(), broken.c_str());
  std::abort();
}

// Half of the changes are of bytes, half of the structure.
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned int seed) {
  std::mt19937_64 random(seed);
  if (random() % 2 == 0) return LLVMFuzzerMutate(data, size, max_size);
  const std::string damaged = target->damage({reinterpret_cast<const char*>(data), size}, random);
  const size_t kept = std::min(damaged.size(), max_size);
  std::memcpy(data, damaged.data(), kept);
  return kept;
}
