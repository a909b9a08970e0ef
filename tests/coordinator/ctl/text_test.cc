#include "coordinator/ctl/text.h"

#include <gtest/gtest.h>

#include <limits>

#include "coordinator/ctl/json.h"
#include "coordinator/ctl/options.h"
#include "tests/coordinator/ctl/fake_operator.h"

namespace espalier::ctl {
namespace {

TEST(Text, BytesAreInPowersOfAThousand) {
  EXPECT_EQ(BytesText(0), "0 B");
  EXPECT_EQ(BytesText(999), "999 B");
  EXPECT_EQ(BytesText(1000), "1.00 kB");
  EXPECT_EQ(BytesText(12345678), "12.3 MB");
  EXPECT_EQ(BytesText(999600000), "1.00 GB");
  EXPECT_EQ(BytesText(192000000000), "192 GB");
}

TEST(Text, CountsAreShort) {
  EXPECT_EQ(CountText(0), "0");
  EXPECT_EQ(CountText(950.4), "950");
  EXPECT_EQ(CountText(1536), "1.54k");
  EXPECT_EQ(CountText(4560000), "4.56M");
  EXPECT_EQ(CountText(std::numeric_limits<double>::infinity()), "-");
}

TEST(Text, DurationsKeepTwoUnits) {
  EXPECT_EQ(DurationText(absl::Seconds(-3)), "0.0s");
  EXPECT_EQ(DurationText(absl::Milliseconds(420)), "0.4s");
  EXPECT_EQ(DurationText(absl::Seconds(59.4)), "59s");
  EXPECT_EQ(DurationText(absl::Seconds(185)), "3m05s");
  EXPECT_EQ(DurationText(absl::Hours(2) + absl::Minutes(7)), "2h07m");
  EXPECT_EQ(DurationText(absl::Hours(99)), "4d03h");
  EXPECT_FALSE(DurationText(absl::InfiniteDuration()).empty());
}

TEST(Text, OnlyThreeStatesAreFinal) {
  int final_states = 0;
  for (int state = v1::JobState_MIN; state <= v1::JobState_MAX; ++state) {
    if (IsFinal(static_cast<v1::JobState>(state))) ++final_states;
  }
  EXPECT_EQ(final_states, 3);
}

TEST(ExitCodes, AreDistinctByKind) {
  EXPECT_EQ(ExitCodeOf(absl::OkStatus()), 0);
  EXPECT_EQ(ExitCodeOf(v1::JOB_STATE_COMPLETED), 0);
  EXPECT_EQ(ExitCodeOf(v1::JOB_STATE_FAILED), 1);
  EXPECT_EQ(ExitCodeOf(absl::InvalidArgumentError("")), 2);
  EXPECT_EQ(ExitCodeOf(absl::NotFoundError("")), 3);
  EXPECT_EQ(ExitCodeOf(absl::FailedPreconditionError("")), 4);
  EXPECT_EQ(ExitCodeOf(absl::UnavailableError("")), 5);
  EXPECT_EQ(ExitCodeOf(absl::UnauthenticatedError("")), 6);
  EXPECT_EQ(ExitCodeOf(absl::PermissionDeniedError("")), 6);
  EXPECT_EQ(ExitCodeOf(absl::DeadlineExceededError("")), 7);
  EXPECT_EQ(ExitCodeOf(v1::JOB_STATE_CANCELLED), 8);
  EXPECT_EQ(ExitCodeOf(absl::InternalError("")), 9);
}

TEST(Json, HasTheNamesAndTheOrderOfTheProto) {
  v1::JobEvent event;
  event.set_number(9007199254740993);
  event.set_state(v1::JOB_STATE_PAUSED_SOFT);
  event.set_text("line\n\"quoted\"");
  EXPECT_EQ(JsonLine(ToJson(event)),
            R"({"number":9007199254740993,"time_ms":0,"state":"PAUSED_SOFT",)"
            R"("text":"line\n\"quoted\""})"
            "\n");
}

TEST(Json, AbsentIsAbsentAndZeroIsThere) {
  v1::JobStatus job;
  nlohmann::ordered_json json = ToJson(job);
  EXPECT_FALSE(json.contains("eta_seconds"));
  EXPECT_FALSE(json.contains("last_checkpoint"));
  EXPECT_EQ(json["step"], 0);
  EXPECT_EQ(json["state"], "UNSPECIFIED");
  EXPECT_EQ(json["ranks"], nlohmann::ordered_json::array());
  job.set_eta_seconds(0);
  EXPECT_EQ(ToJson(job)["eta_seconds"], 0);
}

TEST(Json, NumbersThatJsonLacksAreNull) {
  v1::JobStatus job;
  job.set_loss(std::numeric_limits<double>::quiet_NaN());
  job.set_gradient_norm(std::numeric_limits<double>::infinity());
  EXPECT_TRUE(ToJson(job)["loss"].is_null());
  EXPECT_TRUE(ToJson(job)["gradient_norm"].is_null());
}

TEST(Json, ASpecReadsLikeAJobFile) {
  v1::JobSpec spec;
  spec.mutable_train()->set_precision(v1::PRECISION_FP32);
  spec.mutable_train()->mutable_schedule()->set_kind(v1::SCHEDULE_KIND_COSINE);
  EXPECT_EQ(JsonLine(ToJson(spec)),
            "{\"name\":\"\",\"train\":{\"schedule\":{\"kind\":\"cosine\"},"
            "\"precision\":\"fp32\",\"recompute\":[],\"freeze\":[]}}\n");
}

}  // namespace
}  // namespace espalier::ctl
