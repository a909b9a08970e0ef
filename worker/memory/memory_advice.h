// What a person can change when a model does not fit, with what each change saves. Estimates from
// the shape alone, told with "about". Used by worker/train and
// worker/job_inputs.cc. Pure; any thread.
#pragma once

#include <cstdint>
#include <string>

#include "espalier/v1/job.pb.h"
#include "worker/formats/decoder_config.h"
#include "worker/model/parameters.h"

namespace espalier {

// A rank's model as a job trains it, among `ranks` ranks.
struct TrainedModel {
  const DecoderConfig& config;
  const v1::JobSpec& spec;
  const Parameters::Options& parameters;
  int ranks = 1;
};

// What training keeps. On the device: parameters with their gradients and copies, and both moments
// of AdamW. On the host: sums of gradients that are on a device and are exchanged, and what is owed
// of int8 gradients. On the CPU, and on MPS, both are one memory: all of it is on_device then.
struct StateBytes {
  int64_t on_device = 0;
  int64_t on_host = 0;
  // Of on_device on MPS: what is in the host's memory, which LibTorch's allocator does not count.
  int64_t outside_allocator = 0;
};
StateBytes StateBytesOf(const TrainedModel& model);

// What a forward and backward pass of one sequence keeps besides.
int64_t PassBytes(const DecoderConfig& config, int64_t sequence_length);

// Sequences of a pass whose tensors stay below what the device takes in one piece: 4 GiB on MPS,
// where more ends the process. What operations cut themselves (operand_bounds.h) does not count.
int64_t MostSequences(const DecoderConfig& config, int64_t sequence_length, torch::Device device);

// "parameters, ... take 17.6 GB ...; to need less: data.sequence_length 256 (about 0.4 GB less),
// ...".
std::string MemoryAdvice(const TrainedModel& model, int64_t limit_bytes);

}  // namespace espalier
