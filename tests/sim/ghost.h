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
    v1::AttachRequest message;
    v1::Hello& hello = *message.mutable_hello();
    hello.set_job_id(options.key.job.text());
    hello.set_generation(options.key.generation.value());
    hello.set_world_size(static_cast<int32_t>(options.nodes.size()));
    hello.set_node(options.nodes.front().text());
    hello.set_pid(1000);
    wire.Up(stream, message, Care::kKeep);
  }

  bool OnMessage(StreamId, const std::string& bytes) override {
    v1::AttachResponse message;
    message.ParseFromString(bytes);
    if (message.has_welcome()) {
      scene_.Break(absl::StrCat("a worker of an ended generation of ", message.welcome().job_id(),
                                " is welcomed to generation ", message.welcome().generation()));
    }
    return true;
  }
  bool OnClosed(StreamId, const absl::Status&) override { return true; }

 private:
  Scene& scene_;
};

}  // namespace espalier::sim
