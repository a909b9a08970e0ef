// `validate FILE`, which is also `job validate FILE`. Used by the verb tables.
#pragma once

#include "coordinator/ctl/verbs.h"

namespace espalier::ctl {

// Adds the verb to `verbs.app`, which may itself be a verb.
void AddValidate(VerbTable verbs);

}  // namespace espalier::ctl
