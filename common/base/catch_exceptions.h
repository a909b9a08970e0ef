// CatchExceptions: for the first function of a thread, from which an exception would end the
// process without a word. What LibTorch throws is converted where it is called (worker/tensor),
// codes of MPI in worker/collective. Used by worker/collective, worker/data and worker/sync.
#pragma once

#include <exception>
#include <new>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace espalier {

// What `work` returns; RESOURCE_EXHAUSTED for std::bad_alloc and INTERNAL for any other exception,
// after the words `what`.
inline absl::Status CatchExceptions(absl::string_view what,
                                    absl::FunctionRef<absl::Status()> work) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(
        absl::StrCat(what, ": the machine has no memory left for it"));
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat(what, ": ", error.what()));
  }
}

}  // namespace espalier
