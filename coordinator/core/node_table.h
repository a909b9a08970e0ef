// NodeTable: the nodes in the order of the cluster file, found by name, each with the job that
// holds it, so that neither is searched for. Used by state.h. Thread rule: as ClusterState.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "coordinator/core/node.h"

namespace espalier {

class NodeTable {
 public:
  // At the end. The name is a new one.
  void Add(NodeRecord record);

  std::vector<Node>::const_iterator begin() const { return nodes_.begin(); }
  std::vector<Node>::const_iterator end() const { return nodes_.end(); }
  size_t size() const { return nodes_.size(); }
  bool empty() const { return nodes_.empty(); }

  // Null when the cluster file does not name it.
  const Node* Find(const NodeName& name) const;
  // The same, to be changed: its revision grows.
  Node* Edit(const NodeName& name);

  // The job that holds the node, which may be one that the cluster file does not name: hand-started
  // workers run anywhere. Null: nobody.
  const JobId* HolderOf(const NodeName& name) const;
  // The job holds these nodes now and no others. Nodes without a name are not known yet.
  void SetHeld(const JobId& job, const std::vector<NodeName>& nodes);

 private:
  void Release(const JobId& job, const NodeName& name);

  std::vector<Node> nodes_;
  std::map<NodeName, size_t> index_;
  std::map<NodeName, JobId> holders_;
  std::map<JobId, std::vector<NodeName>> held_;
};

// "studio, macbook"; "none" without any.
std::string NamesOfNodes(const NodeTable& nodes);

}  // namespace espalier
