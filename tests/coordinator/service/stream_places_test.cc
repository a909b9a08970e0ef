// Who may hold one more stream.
#include "coordinator/service/stream_places.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace espalier {
namespace {

using ::testing::HasSubstr;

Caller Node(const std::string& name) { return {.name = name, .role = Role::kWorker}; }
const Caller kLocal = {.name = "local"};

TEST(StreamPlace, OneCertificateHasAShareWhichItGetsBackAsItsStreamsEnd) {
  StreamPlaces places("workers", {.streams_max = 8, .streams_per_caller_max = 2});
  EXPECT_EQ(places.Take(StreamId(1), Node("many")), absl::OkStatus());
  EXPECT_EQ(places.Take(StreamId(2), Node("many")), absl::OkStatus());
  const absl::Status refused = places.Take(StreamId(3), Node("many"));
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("2 streams of workers"));
  EXPECT_EQ(places.Take(StreamId(4), Node("other")), absl::OkStatus());
  places.Free(StreamId(3));  // it has none
  EXPECT_FALSE(places.Take(StreamId(5), Node("many")).ok());
  places.Free(StreamId(1));
  EXPECT_EQ(places.Take(StreamId(6), Node("many")), absl::OkStatus());
}

TEST(StreamPlace, CallersWithoutACertificateMayTakeAllPlaces) {
  StreamPlaces places("workers", {.streams_max = 3, .streams_per_caller_max = 1});
  for (int64_t id = 1; id <= 3; ++id) {
    EXPECT_EQ(places.Take(StreamId(id), kLocal), absl::OkStatus()) << id;
  }
  EXPECT_EQ(places.Take(StreamId(4), kLocal).code(), absl::StatusCode::kResourceExhausted);
  places.Free(StreamId(2));
  EXPECT_EQ(places.Take(StreamId(4), kLocal), absl::OkStatus());
}

}  // namespace
}  // namespace espalier
