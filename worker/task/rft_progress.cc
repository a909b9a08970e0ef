#include "worker/task/rft_progress.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/sha256.h"
#include "common/base/status_macros.h"
#include "common/observe/log.h"
#include "worker/rollout/rollout_bytes.h"

namespace espalier {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kBytesMax = int64_t{1} << 40;  // whoever wrote it had it in memory
constexpr int64_t kVersion = 2;
// Of which all prompts were done.
constexpr int64_t kVersionBefore = 1;
constexpr int kSetAsideMax = 100;

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

absl::Status Damaged(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("it is no progress of rft that can be trusted: ", what));
}

Json TestToJson(const RftTest& test) {
  return {{"answers", test.answers},
          {"accuracy", test.accuracy()},
          {"answer_rate", test.answer_rate()}};
}

RftTest TestOf(const Json& json) {
  RftTest test{.answers = json.at("answers").get<int64_t>()};
  const auto count = [&](const char* share) {
    return std::llround(json.at(share).get<double>() * static_cast<double>(test.answers));
  };
  test.right = count("accuracy");
  test.answered = count("answer_rate");
  return test;
}

Json BodyOf(const RftProgress& progress) {
  Json rows = Json::array();
  for (const RftRow& row : progress.rows) {
    rows.push_back({row.prompt, row.sample, row.ids, row.text});
  }
  Json pending = Json::array();
  for (const RftPending& one : progress.pending) {
    pending.push_back(Json::array({one.prompt, one.made}));
  }
  Json body{{"version", kVersion},
            {"run", progress.run},
            {"prompts", progress.prompts},
            {"samples", progress.samples},
            {"new_tokens", progress.new_tokens},
            {"sample_seconds", progress.sample_seconds},
            {"verify_seconds", progress.verify_seconds}};
  if (progress.before.answers > 0) body["before"] = TestToJson(progress.before);
  body["pending"] = std::move(pending);
  body["rows"] = std::move(rows);
  return body;
}

// Throws nlohmann's exceptions for what is not there.
RftProgress ProgressOf(const Json& body) {
  RftProgress progress{.run = body.at("run").get<std::string>(),
                       .before = {},
                       .prompts = body.at("prompts").get<int64_t>(),
                       .pending = {},
                       .rows = {},
                       .samples = body.at("samples").get<int64_t>(),
                       .new_tokens = body.at("new_tokens").get<int64_t>(),
                       .sample_seconds = body.at("sample_seconds").get<double>(),
                       .verify_seconds = body.at("verify_seconds").get<double>()};
  if (body.contains("before")) progress.before = TestOf(body.at("before"));
  if (body.at("version") == kVersion) {
    for (const Json& one : body.at("pending")) {
      progress.pending.push_back({one.at(0).get<int64_t>(), one.at(1).get<int64_t>()});
    }
  }
  for (const Json& row : body.at("rows")) {
    progress.rows.push_back({.prompt = row.at(0).get<int64_t>(),
                             .sample = row.at(1).get<int64_t>(),
                             .ids = row.at(2).get<std::vector<int32_t>>(),
                             .text = row.at(3).get<std::string>()});
  }
  return progress;
}

// Hours of sampling of another run, which this one would write over.
absl::Status SetAside(FileSystem& files, const std::string& path) {
  absl::Status failed = absl::ResourceExhaustedError(
      absl::StrCat("there are ", kSetAsideMax, " files ", kRftProgressName, ".other-* already"));
  for (int number = 1; number <= kSetAsideMax; ++number) {
    const std::string aside = absl::StrCat(path, ".other-", number);
    if (!absl::IsNotFound(files.Read(aside, /*limit=*/0).status())) continue;
    failed = files.Rename(path, aside);
    if (!failed.ok()) break;
    LogWarning(absl::StrCat(path, " is kept as ", aside));
    return failed;
  }
  return absl::FailedPreconditionError(
      absl::StrCat(path, " is of another run and would be written over: ", failed.message(),
                   "; move it away, or give the job another checkpoint.directory"));
}

// What this rank's folder has; no progress: there is none that could be gone on from.
struct Own {
  std::optional<RftProgress> progress;
  std::string text;
  bool of_another = false;  // run, or of another Espalier
};
Own ReadOwn(FileSystem& files, const std::string& path, const std::string& run,
            uint64_t learns_from) {
  absl::StatusOr<std::string> text = files.Read(path, kBytesMax);
  if (absl::IsNotFound(text.status())) return {};
  absl::StatusOr<RftProgress> progress =
      text.ok() ? RftProgressFromJson(*text) : absl::StatusOr<RftProgress>(text.status());
  const bool of_another = progress.ok() ? progress->run != run
                                        : absl::IsUnimplemented(progress.status()) ||
                                              absl::IsResourceExhausted(progress.status());
  std::string why(progress.status().message());
  if (learns_from == 0 && progress.ok() && of_another) {
    why = "it is of other data, another model or other settings";
  } else if (progress.ok() && learns_from != 0 && HashOf(progress->rows) != learns_from) {
    why = "the run has learnt from other completions";
  }
  if (why.empty()) return {*std::move(progress), *std::move(text)};
  LogWarning(absl::StrCat(path, " is left out: ", why));
  return {.progress = std::nullopt, .text = "", .of_another = of_another};
}

}  // namespace

std::string RftProgressToJson(const RftProgress& progress) {
  const std::string body = Dump(BodyOf(progress));
  return absl::StrCat("{\"sha256\":\"", Sha256Hex(body), "\",\"progress\":", body, "}\n");
}

absl::StatusOr<RftProgress> RftProgressFromJson(absl::string_view text) {
  const Json json = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("progress")) return Damaged("it is cut, or no JSON");
  const Json& body = json.at("progress");
  if (json.value("sha256", Json()) != Sha256Hex(Dump(body))) return Damaged("its hash differs");
  try {
    const int64_t version = body.at("version").get<int64_t>();
    if (version != kVersion && version != kVersionBefore) {
      return absl::UnimplementedError(
          absl::StrCat("another Espalier wrote it, in version ", version));
    }
    return ProgressOf(body);
  } catch (const nlohmann::json::exception& error) {
    return Damaged(error.what());
  }
}

uint64_t HashOf(const std::vector<RftRow>& rows) {
  Sha256 hash;
  const auto add = [&hash](const auto* values, size_t count) {
    hash.Update(
        absl::MakeConstSpan(reinterpret_cast<const std::byte*>(values), count * sizeof(*values)));
  };
  for (const RftRow& row : rows) {
    const int64_t begin[] = {row.prompt, static_cast<int64_t>(row.ids.size())};
    add(begin, 2);
    add(row.ids.data(), row.ids.size());
  }
  uint64_t value = 0;
  static_cast<void>(absl::SimpleHexAtoi(hash.Finish().substr(0, 16), &value));
  return std::max<uint64_t>(value, 1);
}

std::string RftProgressHead(absl::string_view json) {
  constexpr size_t kBytes = 75;  // up to the end of the hash
  return std::string(json.substr(0, kBytes));
}

absl::Status CheckNoFurther(FileSystem& files, const std::string& path, const RftProgress& mine,
                            absl::Span<const std::string> own) {
  const absl::StatusOr<std::string> there = files.Read(path, kBytesMax);
  if (absl::IsNotFound(there.status())) return absl::OkStatus();
  RETURN_IF_ERROR(there.status());  // what cannot be read now may be others'
  if (std::find(own.begin(), own.end(), RftProgressHead(*there)) != own.end()) {
    return absl::OkStatus();
  }
  const absl::StatusOr<RftProgress> others = RftProgressFromJson(*there);
  if (!others.ok() || others->run != mine.run || others->reach() <= mine.reach()) {
    return absl::OkStatus();
  }
  return absl::AbortedError(absl::StrCat(
      path, " has more of what is sampled than this generation: others go on with the run"));
}

absl::StatusOr<RftProgress> LoadRftProgress(const RankContext& context, FileSystem& files,
                                            const std::string& folder, const std::string& run,
                                            uint64_t learns_from) {
  const std::string path = JoinPath(folder, kRftProgressName);
  Own own;
  RETURN_IF_ERROR(RunTogether(context, [&] {
    own = ReadOwn(files, path, run, learns_from);
    return absl::OkStatus();
  }));
  ASSIGN_OR_RETURN(
      const std::vector<int64_t> reached,
      GatherValues(context.collective, own.progress ? own.progress->reach() : int64_t{-1}));
  const auto furthest = std::max_element(reached.begin(), reached.end());
  // Else the run waits for what it has learnt from, and writes nothing.
  const bool is_written = learns_from == 0 || *furthest >= 0;
  RETURN_IF_ERROR(RunTogether(context, [&] {
    return own.of_another && is_written ? SetAside(files, path) : absl::OkStatus();
  }));
  if (*furthest < 0) {
    RftProgress none;
    none.run = run;
    return none;
  }
  const bool mine = furthest - reached.begin() == context.collective.rank().value();
  ASSIGN_OR_RETURN(const std::vector<std::string> all,
                   GatherBytes(context.collective, mine ? own.text : ""));
  absl::StatusOr<RftProgress> progress = absl::UnknownError("not read");
  RETURN_IF_ERROR(RunTogether(context, [&] {
    progress = mine ? *std::move(own.progress)
                    : RftProgressFromJson(all[static_cast<size_t>(furthest - reached.begin())]);
    return progress.status();
  }));
  return progress;
}

}  // namespace espalier
