// Cluster files: YAML -> v1::ClusterSpec, with the hardware profiles that its nodes name. Used by
// espalierd and espalier. Pure but for reading the files: any thread.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "espalier/v1/cluster.pb.h"

namespace espalier {

struct ClusterText {
  absl::string_view yaml;
  // Shown in messages before the line number.
  std::string origin = "cluster";
  // Relative paths in the text are taken from here; absolute.
  std::string folder;
  // Folders with PROFILE.yaml files, searched in this order.
  std::vector<std::string> profile_folders;
};

// Every default is filled in; a field that a node leaves out is taken from its profile first.
// INVALID_ARGUMENT lists up to 20 problems, one a line, as for job files.
absl::StatusOr<v1::ClusterSpec> LoadClusterText(const ClusterText& text);

// Profiles are searched in nodes/ in and beside the file's folder, then in `profile_folders`, then
// among those that come with Espalier.
absl::StatusOr<v1::ClusterSpec> LoadClusterFile(
    const std::string& path, const std::vector<std::string>& profile_folders = {});

// The rules between the fields of a cluster: unique names, IP addresses, no listening beyond
// loopback without TLS. For a spec whose listen address was changed after loading.
absl::Status ValidateClusterSpec(const v1::ClusterSpec& spec);

// Reference of the cluster file, one line a key.
std::string ClusterFileReference();

// Node profiles are files that describe a kind of machine (configs/nodes); a node of a cluster file
// takes over their fields where it gives none itself.
//
// The fields that profile `name` sets, from the first folder that has NAME.yaml. NOT_FOUND lists
// the profiles there are; INVALID_ARGUMENT what is wrong with the file.
absl::StatusOr<v1::NodeSpec> LoadNodeProfile(const std::string& name,
                                             const std::vector<std::string>& folders);
// One of those that come with Espalier.
absl::StatusOr<v1::NodeSpec> LoadShippedProfile(const std::string& name);
// Of the fields that nobody gave.
void FillNodeDefaults(v1::NodeSpec& node);

}  // namespace espalier
