// TokenIds: the ids that the step benchmarks train on: the same integers as peers/token_ids.py
// draws for their peers. Used by tests/bench/step_bench.cc, tests/bench/trm_bench.cc and
// tests/bench/ddp_probe.cc. Any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace espalier::bench {

// `count` ids below `vocabulary`, as frequent as the words of a text: id k (from 0) has the weight
// 2^32 / (k + 1), by Zipf's law. Whole numbers throughout, so that both languages draw the same.
std::vector<int64_t> TokenIds(int64_t count, int64_t vocabulary, uint64_t seed);

// 64-bit FNV-1a over whole ids, as 16 hexadecimal digits: equal in the figures of both sides.
std::string DigestOf(const std::vector<int64_t>& ids);

}  // namespace espalier::bench
