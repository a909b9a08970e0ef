// Who may hold one more stream.
#include "coordinator/service/stream_places.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Caller Node(const std::string& name) { return {.name = name, .role = Role::kWorker}; }
constexpr absl::Duration kNow = absl::Hours(5);
const Caller kLocal = {.name = "local"};

TEST(StreamPlace, OneCertificateHasAShareWhichItGetsBackAsItsStreamsEnd) {
  StreamPlaces places("workers", {.streams_max = 8, .streams_per_caller_max = 2});
  EXPECT_EQ(places.Take(StreamId(1), Node("many"), kNow), absl::OkStatus());
  EXPECT_EQ(places.Take(StreamId(2), Node("many"), kNow), absl::OkStatus());
  const absl::Status refused = places.Take(StreamId(3), Node("many"), kNow);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("2 streams of workers"));
  EXPECT_EQ(places.Take(StreamId(4), Node("other"), kNow), absl::OkStatus());
  places.Free(StreamId(3));  // it has none
  EXPECT_FALSE(places.Take(StreamId(5), Node("many"), kNow).ok());
  places.Free(StreamId(1));
  EXPECT_EQ(places.Take(StreamId(6), Node("many"), kNow), absl::OkStatus());
}

TEST(StreamPlace, CallersWithoutACertificateMayTakeAllPlaces) {
  StreamPlaces places("workers", {.streams_max = 3, .streams_per_caller_max = 1});
  for (int64_t id = 1; id <= 3; ++id) {
    EXPECT_EQ(places.Take(StreamId(id), kLocal, kNow), absl::OkStatus()) << id;
  }
  EXPECT_EQ(places.Take(StreamId(4), kLocal, kNow).code(), absl::StatusCode::kResourceExhausted);
  places.Free(StreamId(2));
  EXPECT_EQ(places.Take(StreamId(4), kLocal, kNow), absl::OkStatus());
}

TEST(StreamPlace, AHelloIsOverdueOnceAndOnlyWhereItWasNotSaid) {
  StreamPlaces places("workers", {.hello_within = absl::Seconds(10)});
  for (int64_t id = 1; id <= 3; ++id) {
    ASSERT_EQ(places.Take(StreamId(id), kLocal, kNow), absl::OkStatus());
  }
  ASSERT_EQ(places.Take(StreamId(4), kLocal, kNow + absl::Seconds(1)), absl::OkStatus());
  places.HelloSaid(StreamId(1));
  places.Free(StreamId(2));
  EXPECT_THAT(places.TakeOverdue(kNow + absl::Seconds(9)), IsEmpty());
  EXPECT_THAT(places.TakeOverdue(kNow + absl::Seconds(10)), ElementsAre(StreamId(3)));
  EXPECT_THAT(places.TakeOverdue(kNow + absl::Seconds(11)), ElementsAre(StreamId(4)));
  EXPECT_THAT(places.TakeOverdue(kNow + absl::Hours(1)), IsEmpty());
}

}  // namespace
}  // namespace espalier
