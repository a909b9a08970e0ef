// Ghost: a worker of a generation that was reported gone, of which it was the one process that
// nobody could reach; it comes back, says hello, and must be fenced. Used by simulation.h. One
// thread.
#pragma once

#include "absl/strings/str_cat.h"
#include "tests/sim/scene.h"
#include "tests/sim/wire.h"
#include "tests/sim/world.h"

namespace espalier::sim {

class Ghost : public WorkerEnd {
 public:
  // `world` is over.
  Ghost(Scene& scene, Wire& wire, const World& world) : scene_(scene) {
    const WorldOptions& options = world.options();
    const StreamId stream = wire.Open(this, options.nodes.front());
    WorkerAttached hello;
    hello.stream = stream;
    hello.worker = {options.key.job, options.key.generation, Rank(0)};
    hello.world_size = static_cast<int32_t>(options.nodes.size());
    hello.node = options.nodes.front();
    hello.pid = 1000;
    wire.Up(stream, hello, Care::kKeep);
  }

  bool OnWelcome(StreamId, const Welcome& welcome) override {
    scene_.Break(absl::StrCat("a worker of an ended generation of ", welcome.worker.job.text(),
                              " is welcomed to generation ", welcome.worker.generation.value()));
    return true;
  }
  bool OnDirective(StreamId, const Directive&) override { return true; }
  bool OnClosed(StreamId, const absl::Status&) override { return true; }

 private:
  Scene& scene_;
};

}  // namespace espalier::sim
