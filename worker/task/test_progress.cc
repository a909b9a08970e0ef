#include "worker/task/test_progress.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/file_system.h"
#include "common/base/sha256.h"
#include "common/base/status_macros.h"
#include "common/observe/log.h"
#include "worker/rollout/rollout_bytes.h"
#include "worker/sync/together.h"

namespace espalier {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kBytesMax = int64_t{64} << 20;
constexpr int64_t kVersion = 2;

absl::Status Damaged(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("it is no test that can be trusted: ", what));
}

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

absl::Status CheckNoFurther(const std::string& path, const TestProgress& mine) {
  const absl::StatusOr<std::string> there = PosixFileSystem().Read(path, kBytesMax);
  if (!there.ok()) return absl::OkStatus();
  const absl::StatusOr<TestProgress> others = TestProgressFromJson(*there);
  if (!others.ok() || others->of != mine.of || others->step != mine.step ||
      others->reach <= mine.reach) {
    return absl::OkStatus();
  }
  return absl::AbortedError(absl::StrCat(
      path, " has more answers of the test than this generation: others go on with the run"));
}

}  // namespace

std::string TestProgressToJson(const TestProgress& kept) {
  const std::string body = Dump({{"version", kVersion},
                                 {"of", kept.of},
                                 {"step", kept.step},
                                 {"reach", kept.reach},
                                 {"so_far", kept.so_far}});
  return absl::StrCat("{\"sha256\":\"", Sha256Hex(body), "\",\"test\":", body, "}\n");
}

absl::StatusOr<TestProgress> TestProgressFromJson(absl::string_view text) {
  const Json json = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("test")) return Damaged("it is cut, or no JSON");
  const Json& body = json.at("test");
  if (json.value("sha256", Json()) != Sha256Hex(Dump(body))) return Damaged("its hash differs");
  try {
    if (body.at("version").get<int64_t>() != kVersion) return Damaged("it is of another version");
    return TestProgress{.of = body.at("of").get<std::string>(),
                        .step = body.at("step").get<int64_t>(),
                        .reach = body.at("reach").get<int64_t>(),
                        .so_far = body.at("so_far").get<std::string>()};
  } catch (const nlohmann::json::exception& error) {
    return Damaged(error.what());
  }
}

absl::StatusOr<TestProgress> LoadTestProgress(const PracticePlace& place, const std::string& name,
                                              const std::string& of, int64_t step) {
  const std::string path = JoinPath(place.folder, name);
  TestProgress own{.of = of, .step = step, .reach = 0, .so_far = {}};
  RETURN_IF_ERROR(RunTogether(place.context, [&] {
    const absl::StatusOr<std::string> text = PosixFileSystem().Read(path, kBytesMax);
    if (absl::IsNotFound(text.status())) return absl::OkStatus();
    absl::StatusOr<TestProgress> there =
        text.ok() ? TestProgressFromJson(*text) : absl::StatusOr<TestProgress>(text.status());
    if (!there.ok()) {
      LogWarning(absl::StrCat(path, " is left out: ", there.status().message()));
    } else if (there->of == of && there->step == step) {
      own = *std::move(there);
    }
    return absl::OkStatus();
  }));
  Collective& collective = place.context.collective;
  ASSIGN_OR_RETURN(const std::vector<int64_t> reaches, GatherValues(collective, own.reach));
  const auto furthest = std::max_element(reaches.begin(), reaches.end()) - reaches.begin();
  const bool mine = furthest == collective.rank().value();
  ASSIGN_OR_RETURN(const std::vector<std::string> told,
                   GatherBytes(collective, mine ? own.so_far : ""));
  own.reach = reaches[static_cast<size_t>(furthest)];
  own.so_far = told[static_cast<size_t>(furthest)];
  return own;
}

absl::StatusOr<bool> WriteTestProgress(PracticeFolder& folder, const std::string& name,
                                       const TestProgress& kept, MayReplace may) {
  PracticeFolder::Content content{.name = name, .text = [&] { return TestProgressToJson(kept); }};
  if (may == MayReplace::kNoFurther) {
    content.may_replace = [&](const std::string& path) { return CheckNoFurther(path, kept); };
  }
  ASSIGN_OR_RETURN(const PracticeFolder::Written written, folder.Write(content));
  return written.mine;
}

}  // namespace espalier
