// The named shapes of models (model.preset), as the architecture fields of a ModelSpec. Used by
// job_rules.cc, worker/formats and worker/model/pretrained.cc, so that all know the same shapes.
// Any thread.
#pragma once

#include "absl/strings/string_view.h"
#include "espalier/v1/job.pb.h"

namespace espalier {

// The shape of a preset; null: there is none of this name.
const v1::ModelSpec* FindModelPreset(absl::string_view name);

// The spec with the fields of its preset filled in where it gives none itself. Without a preset:
// the spec. num_key_value_heads and head_dim follow num_attention_heads and hidden_size where
// neither gives them (head_dim only where the division leaves no remainder).
v1::ModelSpec ResolveModel(const v1::ModelSpec& spec);

}  // namespace espalier
