#include "worker/task/rft_tested.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/sha256.h"
#include "common/base/status_macros.h"
#include "common/observe/log.h"

namespace espalier {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kBytesMax = 1 << 20;
constexpr int64_t kVersion = 1;

absl::Status Damaged(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("it is no test of rft that can be trusted: ", what));
}

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

std::string RftKeptTestToJson(const RftKeptTest& kept) {
  const std::string body = Dump({{"version", kVersion},
                                 {"of", kept.of},
                                 {"step", kept.step},
                                 {"answers", kept.test.answers},
                                 {"right", kept.test.right},
                                 {"answered", kept.test.answered}});
  return absl::StrCat("{\"sha256\":\"", Sha256Hex(body), "\",\"test\":", body, "}\n");
}

absl::StatusOr<RftKeptTest> RftKeptTestFromJson(absl::string_view text) {
  const Json json = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("test")) return Damaged("it is cut, or no JSON");
  const Json& body = json.at("test");
  if (json.value("sha256", Json()) != Sha256Hex(Dump(body))) return Damaged("its hash differs");
  try {
    if (body.at("version").get<int64_t>() != kVersion) return Damaged("it is of another version");
    return RftKeptTest{.of = body.at("of").get<std::string>(),
                       .step = body.at("step").get<int64_t>(),
                       .test = {.answers = body.at("answers").get<int64_t>(),
                                .right = body.at("right").get<int64_t>(),
                                .answered = body.at("answered").get<int64_t>()}};
  } catch (const nlohmann::json::exception& error) {
    return Damaged(error.what());
  }
}

absl::Status CheckNoFurther(FileSystem& files, const std::string& path, const RftKeptTest& mine) {
  const absl::StatusOr<std::string> there = files.Read(path, kBytesMax);
  if (!there.ok()) return absl::OkStatus();
  const absl::StatusOr<RftKeptTest> others = RftKeptTestFromJson(*there);
  if (!others.ok() || others->of != mine.of || others->step != mine.step ||
      others->test.answers <= mine.test.answers) {
    return absl::OkStatus();
  }
  return absl::AbortedError(absl::StrCat(
      path, " has more answers of the test than this generation: others go on with the run"));
}

absl::StatusOr<RftKeptTest> LoadRftKeptTest(const RankContext& context, FileSystem& files,
                                            const std::string& folder, const std::string& of,
                                            int64_t step) {
  const std::string path = JoinPath(folder, kRftKeptTestName);
  RftTest own;
  RETURN_IF_ERROR(RunTogether(context, [&] {
    const absl::StatusOr<std::string> text = files.Read(path, kBytesMax);
    if (absl::IsNotFound(text.status())) return absl::OkStatus();
    const absl::StatusOr<RftKeptTest> there =
        text.ok() ? RftKeptTestFromJson(*text) : absl::StatusOr<RftKeptTest>(text.status());
    if (!there.ok()) {
      LogWarning(absl::StrCat(path, " is left out: ", there.status().message()));
    } else if (there->of == of && there->step == step) {
      own = there->test;
    }
    return absl::OkStatus();
  }));
  ASSIGN_OR_RETURN(const std::vector<RftTest> all, GatherValues(context.collective, own));
  const auto furthest =
      std::max_element(all.begin(), all.end(),
                       [](const RftTest& a, const RftTest& b) { return a.answers < b.answers; });
  return RftKeptTest{.of = of, .step = step, .test = *furthest};
}

}  // namespace espalier
