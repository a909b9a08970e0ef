// RunName and TestName: what runs whose model makes what they learn from are told apart by, so that
// what one has kept is no use to another. Paths do not count, which differ from node to node; what
// is there does. Used by rft_practice.cc, grpo_practice.cc and tests. Compute thread.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "espalier/v1/job.pb.h"
#include "worker/sync/together.h"

namespace espalier {

// Of the model, its base and the adapters that a job begins with: of their configurations and of
// pieces of each tensor, since to read all of it would take minutes. However the folders are
// called, whatever the device, the precision and the division into files are. Empty: it begins with
// none.
// NOT_FOUND: a folder is not there; DATA_LOSS: a file of weights is damaged.
absl::StatusOr<std::string> ModelContent(const v1::JobSpec& spec);

// One that all ranks have, of the first that can tell: whose weights came from another need none.
// Every rank calls it. Where none can tell, the first one's error; or one of the collective.
absl::StatusOr<std::string> SharedModelContent(const RankContext& context, const v1::JobSpec& spec);

// Equal for runs whose models make the same of the same prompts before the first step. The data,
// what is sampled and how it is judged, the model, seed and precision are in it. Settings that have
// their default values do not count, so that a newer version, which knows more of them, goes on
// with the same run; nor does how long a verifier may take, or how many rows and processes there
// are. `content`: ModelContent.
std::string RunName(const v1::JobSpec& spec, absl::string_view data_hash,
                    absl::string_view content = "");

// Equal for runs whose models are equal at a step, but for rounding, and are tested equally: of the
// same RunName and settings of the training. `learns_from`: a hash of what was made and learnt from
// (Practice::learns_from).
std::string TestName(const v1::JobSpec& spec, absl::string_view data_hash,
                     absl::string_view learns_from);

}  // namespace espalier
