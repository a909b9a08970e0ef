// What a person can change when a model does not fit, with what each change saves. Estimates from
// the shape alone, told with "about". Used by worker/train and
// worker/session.cc. Pure; any thread.
#pragma once

#include <cstdint>
#include <string>

#include "espalier/v1/job.pb.h"
#include "worker/formats/decoder_config.h"
#include "worker/model/parameters.h"

namespace espalier {

// What training keeps: parameters with their gradients and copies, both moments of AdamW, and where
// the device's memory is the host's (MPS) the sums of the exchange.
int64_t StateBytes(const DecoderConfig& config, v1::MomentType moments,
                   const Parameters::Options& options);

// What a forward and backward pass of one sequence keeps besides.
int64_t PassBytes(const DecoderConfig& config, int64_t sequence_length);

// "parameters, ... take 17.6 GB ...; to need less: data.sequence_length 256 (about 0.4 GB less),
// ...".
std::string MemoryAdvice(const DecoderConfig& config, const v1::JobSpec& spec,
                         const Parameters::Options& options, int64_t limit_bytes);

}  // namespace espalier
