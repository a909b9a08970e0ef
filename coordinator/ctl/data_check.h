// Whether the data of a job can be trained on as the job says, and its model is one, by their
// folders, and whether its verifier's program is there, so that `submit` and `validate` refuse or
// mention what the workers would refuse minutes later. This machine may hold no data, or be none of
// the nodes: where nothing can be read here, nothing is said against the data. Used by
// verbs_submit.cc. Pure but for the files that they read: any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "espalier/v1/job.pb.h"

namespace espalier::ctl {

// What a prepared folder holds, of what its manifest tells (worker/data/README.md).
struct HeldData {
  // Prompts with completions, or others; else text.
  bool examples = false;
  bool pairs = false;        // prompts with completions
  bool prompts = false;      // prompts that are to be completed, and no examples
  bool preferences = false;  // pairs of answers, and no examples
  // Of the split 'train'; documents or examples, or pairs of answers.
  int64_t training_tokens = 0;
  int64_t training_documents = 0;
  std::vector<std::string> tables = {};   // files that say where examples lie
  std::vector<std::string> records = {};  // of prompts: files of their records
};

// Absent where the manifest is damaged, or of a version that is not known here: the workers say
// what is wrong with it.
std::optional<HeldData> ReadManifest(absl::string_view manifest);

// INVALID_ARGUMENT when train.task learns from other data, or when there are too few tokens for one
// sequence. `folder` is for the message.
absl::Status CheckHeldData(const v1::JobSpec& spec, const HeldData& held, absl::string_view folder);

// The rows that the examples of the split 'train' share (data.packing), by the tables of the
// folder. DATA_LOSS names one that is damaged.
absl::StatusOr<int64_t> CountPackedRows(const HeldData& held, absl::string_view folder,
                                        int64_t sequence_length);

// INVALID_ARGUMENT when the record of the first prompt is none of the job's verifier. Nothing is
// said against a folder that is damaged, nor for a program of the user's.
absl::Status CheckFirstRecord(const v1::JobSpec& spec, const HeldData& held,
                              absl::string_view folder);

// Both of what lies in data.path here; OK where there is no manifest that can be read.
// Sets what follows from train.epochs: FAILED_PRECONDITION when that needs a manifest and there is
// none here, DATA_LOSS when it needs a table that is damaged.
absl::Status CheckData(v1::JobSpec& spec);

// "data.path: ... does not exist on this machine ...", or that it holds no manifest; empty when it
// does.
std::string DataRemark(const v1::JobSpec& spec);

// "train.verifier.command: ... is no file on this machine ...", or that it may not be run; empty
// when it may, for a name that each node searches for, and where the job has no program of the
// user's.
std::string ProgramRemark(const v1::JobSpec& spec);

// Of model.from: INVALID_ARGUMENT when it is no model and no folder of checkpoints, NOT_FOUND or
// PERMISSION_DENIED when nobody can tell here: nodes may have it all the same. OK where the job
// names none. Of a folder of checkpoints the newest, by their names, is what the job names then, so
// that all nodes take the same, and so does every start; the workers verify it.
absl::Status CheckModel(v1::JobSpec& spec);

}  // namespace espalier::ctl
