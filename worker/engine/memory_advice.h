// What a person can change when a model does not fit, with what each change saves. Estimates from
// the shape alone, told with "about". Used by the trainer and session.cc. Pure; any thread.
#pragma once

#include <cstdint>
#include <string>

#include "espalier/v1/job.pb.h"
#include "worker/model/decoder_config.h"

namespace espalier {

// Values and gradients in fp32, and both moments of AdamW in what they are kept in.
int64_t StateBytes(const DecoderConfig& config, v1::MomentType moments);

// What a forward and backward pass of one sequence keeps besides.
int64_t PassBytes(const DecoderConfig& config, int64_t sequence_length);

// "parameters, ... take 17.6 GB ...; to need less: data.sequence_length 256 (about 0.4 GB less),
// ...".
std::string MemoryAdvice(const DecoderConfig& config, const v1::JobSpec& spec, int64_t limit_bytes);

}  // namespace espalier
