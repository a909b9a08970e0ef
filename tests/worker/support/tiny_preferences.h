// Made-up pairs of answers, of which that of even tokens is preferred, and a job that learns from
// them. Used by tests/worker/task and tests/worker/mac. One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/random.h"
#include "common/config/job_file.h"
#include "tests/worker/support/training_world.h"
#include "worker/data/packed_table.h"

namespace espalier {

// Prompts of 3 to 6 tokens, and answers of 1 to 4 of [1, 48], each ended by 0: two of them are as
// long as TinySpec's sequences at most.
inline std::shared_ptr<const PreferenceTable> TinyPreferences(int64_t count, uint64_t seed = 1) {
  SplitMix64 random(seed);
  std::vector<int64_t> tokens;
  std::vector<ExampleSpan> spans;
  const auto end = [&] { return static_cast<int64_t>(tokens.size()); };
  for (int64_t pair = 0; pair < count; ++pair) {
    std::vector<int64_t> prompt(static_cast<size_t>(3 + pair % 4));
    for (int64_t& id : prompt) id = static_cast<int64_t>(random.Below(50));
    for (const int64_t rejected : {0, 1}) {
      ExampleSpan span{.prompt = end()};
      tokens.insert(tokens.end(), prompt.begin(), prompt.end());
      span.completion = end();
      for (int64_t t = 0; t <= (pair + rejected) % 4; ++t) {
        tokens.push_back(2 + 2 * static_cast<int64_t>(random.Below(24)) - rejected);
      }
      tokens.push_back(0);
      span.end = end();
      spans.push_back(span);
    }
  }
  return std::make_shared<PreferenceTable>(
      *PreferenceTable::Create(std::make_shared<VectorTokenRow>(std::move(tokens)),
                               std::make_shared<VectorExampleIndex>(std::move(spans)),
                               {.sequence_length = 32, .end_of_text = 0}));
}

inline v1::JobSpec TinyPreferenceSpec(int64_t steps) {
  v1::JobSpec spec = TinySpec(steps);
  spec.mutable_train()->set_task(v1::TASK_DPO);
  spec.mutable_train()->mutable_lora()->set_rank(4);
  spec.mutable_train()->mutable_schedule()->set_kind(v1::SCHEDULE_KIND_CONSTANT);
  spec.mutable_train()->mutable_dpo();
  FillJobDefaults(spec);
  return spec;
}

}  // namespace espalier
