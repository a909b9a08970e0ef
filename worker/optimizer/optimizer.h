// AdamW over the flat buffers of Parameters, with a moving average of the values where one is
// wanted, and the norm of the gradient. One pass over raw
// memory, on the CPU and on CUDA; for other devices on the host. The same bits everywhere and with
// any number of threads. Used by worker/state: replica.h and warm_segment.h, and by
// worker/sync/synchroniser.h. Compute thread only.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "espalier/v1/job.pb.h"
#include "worker/kernels/adamw_math.h"
#include "worker/model/parameters.h"
#include "worker/optimizer/moments.h"
#include "worker/optimizer/undo_log.h"
#include "worker/tensor/torch.h"

namespace espalier {

class AdamW {
 public:
  // Allocates the moments, zeroed, on the device of the parameters, which must have gradients and
  // outlive this. RESOURCE_EXHAUSTED names the bytes needed. `ema`: as train.ema has it; 0: none.
  static absl::StatusOr<AdamW> Create(const v1::OptimizerSpec& spec, Parameters& parameters,
                                      double ema = 0);

  struct Update {
    double learning_rate = 0;
    // The gradient is multiplied by this first: 1 / tokens, and clipping.
    double gradient_scale = 1;
  };
  // One update of every parameter and of its copy in the compute type; the gradients are zero
  // afterwards.
  void Apply(const Update& update);

  // Keeps a log of each update of the CPU's memory from now on, so that it can be finished after a
  // death in the middle; null: none. It outlives this, and is of blocks() blocks.
  void set_undo_log(UndoLog* log) { undo_ = log; }
  UndoLog* undo_log() const { return undo_; }
  int64_t blocks() const;
  // Finishes the update that the log was begun for: with the same gradients, updates() and `update`
  // as when it was interrupted it gives the same bits. Copies in the compute type are not made.
  void Redo(const Update& update);

  // L2 norm of the gradient as it stands (not scaled); not finite when an element is not.
  double GradientNorm() const;

  const Moments& moments() const { return moments_; }
  // The moving average of the values, where they lie; undefined: none is wanted.
  const FlatTensor& average() const { return average_; }
  // It begins as the values are.
  void ResetAverage();
  // Updates applied, on which the correction of the moments' bias depends.
  int64_t updates() const { return updates_; }
  void set_updates(int64_t updates) { updates_ = updates; }

 private:
  // Neighbouring parameters that are treated alike; a single one with 8-bit optimizer state.
  struct Group {
    int64_t begin = 0;
    int64_t end = 0;
    bool decay = false;
    bool copied = false;         // into the compute type
    bool looked_up = false;      // its gradient is the lookup_gradient of Parameters
    size_t first_parameter = 0;  // its place in Parameters::trained()
    int64_t first_block = 0;     // in the log
  };
  struct Factors;
  struct PieceOfMoments;
  struct Piece;
  AdamW(const v1::OptimizerSpec& spec, Parameters& parameters, Moments moments);
  Factors FactorsOf(const Update& update) const;
  AdamWStep StepOf(const Factors& factors, const Group& group) const;
  RandomPlace RandomOf(const Group& group, int64_t begin) const;
  // Of `size` elements of the group from its element `begin` on.
  PieceOfMoments MomentsOf(const Group& group, int64_t begin, int64_t size) const;
  void ApplyToPiece(const AdamWStep& step, const Group& group, int64_t begin, int64_t size,
                    const LookupGradient& lookups);
  void ApplyOnHost(const Factors& factors);
  void ApplyOnCuda(const Factors& factors);

  v1::OptimizerSpec spec_;
  Parameters* parameters_;
  std::vector<Group> groups_;
  Moments moments_;
  FlatTensor average_;
  float average_share_ = 0;  // of the new values
  int64_t updates_ = 0;
  UndoLog* undo_ = nullptr;
};

// The factor that shortens a gradient of length `norm` to at most `clip_norm` (0: never).
double ClipFactor(double norm, double clip_norm);

}  // namespace espalier
