// What jobs have left in this node's memory (common/base/shared_segment.h): reported, and given
// back when espalierd says that nobody needs it. Used by coordinator/agent. Thread-safe: there is
// nothing but the registry's folder.
#pragma once

#include <string>

#include "espalier/v1/agent.pb.h"
#include "espalier/v1/node.pb.h"

namespace espalier {

// Adds what is registered for the node in the folder; what is of an earlier life of the machine is
// struck off the register. `before`: what to say where the folder cannot be read.
void AddWarm(const std::string& folder, const std::string& node, const v1::NodeReport& before,
             v1::NodeReport& report);

// Gives back what the command names; processes keep what they have.
void DropWarm(const std::string& folder, const std::string& node, const v1::DropWarm& command);

}  // namespace espalier
