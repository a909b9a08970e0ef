// Whether the data of a job can be trained on as the job says, by the manifest of its folder, so
// that `submit` and `validate` refuse what the workers would refuse minutes later. This machine may
// hold no data, or be none of the nodes: where nothing can be read here, nothing is said against
// it. Used by verbs_submit.cc. Pure but for the file that they read: any thread.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "espalier/v1/job.pb.h"

namespace espalier::ctl {

// INVALID_ARGUMENT when the manifest in data.path says that train.task learns from other data, or
// that there are too few tokens for one sequence. OK where there is no manifest that can be read.
absl::Status CheckData(const v1::JobSpec& spec);

// The same of a manifest's text; `folder` is for the message.
absl::Status CheckManifest(const v1::JobSpec& spec, absl::string_view manifest,
                           absl::string_view folder);

// "data.path ... does not exist on this machine ...", or that it holds no manifest; empty when it
// does.
std::string DataRemark(const v1::JobSpec& spec);

}  // namespace espalier::ctl
