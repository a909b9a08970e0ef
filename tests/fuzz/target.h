// FuzzTarget: a reader of bytes that others wrote, with what must hold whatever they are. Used by
// tests/fuzz: the short run among the tests (short_test.cc) and libFuzzer (libfuzzer_main.cc). One
// thread.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace espalier {

struct FuzzTarget {
  absl::string_view name;  // that of its folder in tests/data/fuzz too
  // Reads the input and uses what comes of it. The rule that was broken, for a person; empty: none.
  std::string (*check)(absl::string_view input);
  // Sound inputs, small enough for thousands of runs a second.
  std::vector<std::string> (*seeds)();
  // The input with parts of its structure changed.
  std::string (*damage)(const std::string& input, std::mt19937_64& random);
  int short_rounds;  // of the run among the tests: a second or two
};

// In the order of the README.
const std::vector<FuzzTarget>& FuzzTargets();

FuzzTarget SafetensorsTarget();
FuzzTarget ConfigTarget();
FuzzTarget AdapterTarget();
FuzzTarget TokenizerTarget();
FuzzTarget SentencePieceTarget();
FuzzTarget ChatTemplateTarget();
FuzzTarget RowsTarget();
FuzzTarget ManifestTarget();
FuzzTarget RecordTarget();
FuzzTarget AnswerTarget();
FuzzTarget YamlTarget();

// The rule that a refusal breaks: it says what is wrong, in few words, and is no fault of the
// program (INTERNAL, UNKNOWN). Empty for one that does not, and for OK.
std::string BrokenBy(const absl::Status& refusal);

// A file of tests/data by its name, or all files of a folder of it in order of name. Ends the
// program when there is none.
std::string TestData(absl::string_view name);
std::vector<std::string> TestDataIn(absl::string_view folder, absl::string_view suffix);
// The inputs in tests/data/fuzz that broke a rule once.
std::vector<std::string> FormerFindings(const FuzzTarget& target);

}  // namespace espalier
