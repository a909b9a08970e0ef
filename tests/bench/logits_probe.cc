// Logits of a model folder with adapters on it, as peers/hugging_face_folder.py compares them: of
// the ids 5, 10, 15 ... (64 of them), written to a file as fp32. Run by bench_h200_lora.sh.

#include <CLI/CLI.hpp>
#include <fstream>
#include <iostream>

#include "worker/model/decoder.h"
#include "worker/model/pretrained.h"
#include "worker/tensor/torch.h"

namespace espalier {
namespace {

struct Options {
  std::string folder, adapter, output;
  std::string device = "cuda";
  std::string precision = "fp32";
};

Options Parse(int argc, char** argv) {
  Options options;
  CLI::App app("Logits of a model folder, as a file");
  app.add_option("folder", options.folder)->required();
  app.add_option("output", options.output)->required();
  app.add_option("--adapter", options.adapter);
  app.add_option("--device", options.device)->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_option("--precision", options.precision)->check(CLI::IsMember({"fp32", "bf16"}));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  return options;
}

int Main(const Options& options) {
  const absl::StatusOr<PretrainedModel> model = LoadPretrained(
      options.folder,
      {.device = torch::Device(options.device),
       .compute_type = options.precision == "bf16" ? torch::kBFloat16 : torch::kFloat},
      options.adapter);
  if (!model.ok()) {
    std::cerr << model.status() << "\n";
    return 1;
  }
  const Decoder decoder(model->config, model->parameters);
  torch::NoGradGuard no_grad;
  const torch::Tensor ids = torch::arange(1, 65).mul(5).view({1, -1}).to(decoder.device());
  const torch::Tensor logits = decoder.Logits(ids).to(torch::kFloat).cpu().contiguous();
  std::ofstream file(options.output, std::ios::binary);
  file.write(static_cast<const char*>(logits.data_ptr()), logits.numel() * 4);
  file.close();
  return file ? 0 : 1;
}

}  // namespace
}  // namespace espalier

int main(int argc, char** argv) { return espalier::Main(espalier::Parse(argc, argv)); }
