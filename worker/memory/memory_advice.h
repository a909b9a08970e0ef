// What a person can change when a model does not fit, with what each change saves. Estimates from
// the shape alone, told with "about". Used by the trainer and session.cc. Pure; any thread.
#pragma once

#include <cstdint>
#include <string>

#include "espalier/v1/job.pb.h"
#include "worker/formats/decoder_config.h"
#include "worker/model/parameters.h"

namespace espalier {

// Values, gradients as far as they are kept, in fp32, and both moments of AdamW.
int64_t StateBytes(const DecoderConfig& config, v1::MomentType moments,
                   Parameters::Gradients gradients);

// What a forward and backward pass of one sequence keeps besides.
int64_t PassBytes(const DecoderConfig& config, int64_t sequence_length);

// "parameters, ... take 17.6 GB ...; to need less: data.sequence_length 256 (about 0.4 GB less),
// ...".
std::string MemoryAdvice(const DecoderConfig& config, const v1::JobSpec& spec,
                         Parameters::Gradients gradients, int64_t limit_bytes);

}  // namespace espalier
