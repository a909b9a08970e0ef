// What the verbs show with `-o table`. Used by coordinator/ctl. Pure functions of the protos and a
// View, so that tests compare whole screens. Any thread.
#pragma once

#include <string>
#include <vector>

#include "common/rpc/certificate.h"
#include "coordinator/ctl/text.h"
#include "espalier/v1/operator.pb.h"

namespace espalier::ctl {

struct Cell {
  Cell(std::string text, Colour colour = Colour::kNone)  // NOLINT: cells are written as text.
      : text(std::move(text)), colour(colour) {}
  std::string text;
  Colour colour;
};

// Columns that line up.
class Table {
 public:
  enum class Align { kLeft, kRight };
  struct Column {
    std::string title;
    Align align = Align::kLeft;
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  // One cell per column. Control characters are replaced by spaces.
  void Add(std::vector<Cell> row);
  bool empty() const { return rows_.empty(); }

  // Title line and rows, each line starting with `indent` spaces and ending with a newline; the
  // last column is not padded.
  std::string Render(const View& view, int indent = 0) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<Cell>> rows_;
};

// One line a job, newest last as the server sends them.
std::string RenderJobs(const v1::ListJobsResponse& response, const View& view);

enum class Detail { kSummary, kPlan };
// Everything about one job; kPlan adds the shard plan with the numbers it came from.
std::string RenderJob(const v1::JobStatus& status, Detail detail, const View& view);

// The ranks: node, device, share of the global batch, phase, step, memory, time of the last step.
// Empty without ranks; at most `most` of them, then a line that says how many more there are.
std::string RenderRanks(const v1::JobStatus& status, int most, const View& view);

// One line a node; columns that say nothing of any node are left out.
std::string RenderNodes(const v1::ListNodesResponse& response, const View& view);
std::string RenderEvents(const v1::ListEventsResponse& response, const View& view);

// `espalier validate`: what the job would do, in a few lines.
std::string RenderSpec(const v1::JobSpec& spec, const std::string& file);

struct NamedCertificate {
  std::string path;
  CertificateInfo info;
};
// `espalier pki show`.
std::string RenderCertificates(const std::vector<NamedCertificate>& certificates, const View& view);

}  // namespace espalier::ctl
