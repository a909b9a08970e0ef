// Weights and what lies beside them: model.safetensors, config.json, and adapters of PEFT.
#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "tests/fuzz/damage.h"
#include "tests/fuzz/target.h"
#include "worker/formats/decoder_config.h"
#include "worker/formats/lora_config.h"
#include "worker/formats/safetensors.h"

namespace espalier {
namespace {

constexpr size_t kDataMost = 4096;  // bytes of tensors in a seed

absl::Span<const std::byte> Bytes(absl::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

// A tensor lies in the file, and is found by its name.
std::string CheckTensors(const Safetensors& file, absl::string_view input) {
  const std::byte* const begin = Bytes(input).data();
  size_t bytes = 0;
  for (const TensorView& tensor : file.tensors()) {
    const auto size = TensorBytes(tensor.spec);
    if (!size.ok() || static_cast<size_t>(*size) != tensor.bytes.size()) return "another size";
    if (tensor.bytes.data() < begin || tensor.bytes.data() > begin + input.size() ||
        tensor.bytes.size() > static_cast<size_t>(begin + input.size() - tensor.bytes.data())) {
      return absl::StrCat("tensor ", tensor.spec.name, " lies outside the file");
    }
    bytes += tensor.bytes.size();
    if (file.Find(tensor.spec.name) != &tensor) return "a tensor is not found by its name";
    if (!file.Get(tensor.spec).ok()) return "a tensor is not what it says";
  }
  return bytes <= input.size() ? "" : "tensors overlap";
}

std::string CheckSafetensors(absl::string_view input) {
  const auto file = Safetensors::Parse(Bytes(input), "model.safetensors");
  if (!file.ok()) return BrokenBy(file.status());
  if (std::string broken = CheckTensors(*file, input); !broken.empty()) return broken;
  // Written again it is the same.
  std::vector<TensorSpec> specs;
  for (const TensorView& tensor : file->tensors()) specs.push_back(tensor.spec);
  std::string written;
  const auto sink = [&](absl::Span<const std::byte> bytes) {
    written.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return absl::OkStatus();
  };
  auto writer = SafetensorsWriter::Create(specs, file->metadata(), sink);
  const auto nameless = [](const TensorSpec& spec) { return spec.name.empty(); };
  if (!writer.ok()) {
    const bool refused = std::any_of(specs.begin(), specs.end(), nameless);
    return refused ? "" : "it cannot be written";
  }
  for (const TensorView& tensor : file->tensors()) {
    if (!writer->Append(tensor.bytes).ok()) return "its tensors cannot be written";
  }
  const auto again = Safetensors::Parse(Bytes(written), "again");
  if (!writer->Finish().ok() || !again.ok()) return "what was written cannot be read";
  return again->tensors().size() == specs.size() ? "" : "tensors were lost";
}

std::string WithHeader(const std::string& header, const std::string& data) {
  const uint64_t length = header.size();
  return absl::StrCat(absl::string_view(reinterpret_cast<const char*>(&length), sizeof(length)),
                      header, data);
}

// The first tensors of a file, as a file.
std::string Beginning(const std::string& file) {
  const auto read = Safetensors::Parse(Bytes(file), "seed");
  SafetensorsHeader header{.metadata = read->metadata()};
  std::string data;
  for (const TensorView& tensor : read->tensors()) {
    if (data.size() + tensor.bytes.size() > kDataMost) continue;
    const auto begin = static_cast<int64_t>(data.size());
    data.append(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
    header.entries.push_back({tensor.spec, begin, static_cast<int64_t>(data.size())});
  }
  return WithHeader(*FormatSafetensorsHeader(header), data);
}

std::vector<std::string> SafetensorsSeeds() {
  return {WithHeader("{}", ""),
          WithHeader(R"({"a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},)"
                     R"("b":{"dtype":"BOOL","shape":[],"data_offsets":[8,9]},)"
                     R"("c":{"dtype":"F8_E4M3","shape":[0,7],"data_offsets":[9,9]}})",
                     "123456789"),
          Beginning(TestData("models/llama-bf16/model.safetensors")),
          Beginning(TestData("models/smollm2-tiny/adapter/adapter_model.safetensors")),
          Beginning(TestData("models/llama-sharded/model-00006-of-00006.safetensors"))};
}

std::string CheckConfig(absl::string_view input) {
  const auto config = DecoderConfigFromJson(input);
  if (!config.ok()) return BrokenBy(config.status());
  const auto again = DecoderConfigFromJson(DecoderConfigToJson(*config));
  if (!again.ok()) return absl::StrCat("what it writes is refused: ", again.status().ToString());
  return *again == *config ? "" : "what it writes is another config";
}

std::vector<std::string> ConfigSeeds() {
  std::vector<std::string> seeds;
  for (const char* name : {"gpt2-tiny", "llama-all-biases", "llama-yarn", "llama32-tiny",
                           "mistral-window", "qwen2-window", "qwen3-window", "unsupported"}) {
    seeds.push_back(TestData(absl::StrCat("models/", name, "/config.json")));
  }
  seeds.push_back(TestData("trm/trm-chat-3-2-4/config.json"));
  seeds.push_back(TestData("trm/trm-puzzle-3-4-3/config.json"));
  return seeds;
}

std::string DamageConfig(const std::string& input, std::mt19937_64& random) {
  static constexpr absl::string_view kWords[] = {"llama",
                                                 "qwen2",
                                                 "qwen3",
                                                 "mistral",
                                                 "gpt2",
                                                 "trm",
                                                 "layer_types",
                                                 "full_attention",
                                                 "sliding_attention",
                                                 "use_sliding_window",
                                                 "sliding_window",
                                                 "max_window_layers",
                                                 "rope_scaling",
                                                 "rope_parameters",
                                                 "yarn",
                                                 "dynamic",
                                                 "linear",
                                                 "llama3",
                                                 "factor",
                                                 "num_hidden_layers",
                                                 "eos_token_id",
                                                 "head_dim",
                                                 "partial_rotary_factor",
                                                 "expansion"};
  return DamagedJson(input, kWords, random);
}

// adapter_config.json, a NUL, adapter_model.safetensors.
std::string CheckAdapter(absl::string_view input) {
  const size_t end = std::min(input.find('\0'), input.size());
  const auto config = LoraConfigFromJson(input.substr(0, end));
  if (!config.ok()) return BrokenBy(config.status());
  if (!(config->scale() >= 0)) return "a scale that is no number";
  const AdapterFacts facts{.base = "base", .targets = config->targets};
  const auto again = LoraConfigFromJson(AdapterConfigToJson(*config, facts));
  if (!again.ok()) return absl::StrCat("what it writes is refused: ", again.status().ToString());
  if (!again->ComputesAs(*config)) return "what it writes computes otherwise";
  const absl::string_view weights = input.substr(std::min(end + 1, input.size()));
  const auto file = Safetensors::Parse(Bytes(weights), kAdapterModelName);
  if (!file.ok()) return BrokenBy(file.status());
  for (const TensorView& tensor : file->tensors()) config->Targets(tensor.spec.name);
  return CheckTensors(*file, weights);
}

std::vector<std::string> AdapterSeeds() {
  std::vector<std::string> seeds;
  for (const char* name : {"smollm2-tiny", "llama-tiny", "qwen2-tiny"}) {
    const std::string folder = absl::StrCat("models/", name, "/adapter/");
    seeds.push_back(absl::StrCat(TestData(folder + kAdapterConfigName), std::string(1, '\0'),
                                 Beginning(TestData(folder + kAdapterModelName))));
  }
  return seeds;
}

std::string DamageAdapter(const std::string& input, std::mt19937_64& random) {
  static constexpr absl::string_view kWords[] = {
      "all-linear",        "q_proj", "target_modules", "r",           "lora_alpha",
      "use_rslora",        "bias",   "none",           "peft_type",   "LORA",
      "init_lora_weights", "pissa",  "rank_pattern",   "lora_dropout"};
  const size_t end = input.find('\0');
  if (end == std::string::npos) return DamagedJson(input, kWords, random);
  const std::string config = input.substr(0, end), weights = input.substr(end + 1);
  const bool first = random() % 2 == 0;
  return absl::StrCat(first ? DamagedJson(config, kWords, random) : config, std::string(1, '\0'),
                      first ? weights : DamagedSafetensors(weights, random));
}

}  // namespace

FuzzTarget SafetensorsTarget() {
  return {"safetensors", CheckSafetensors, SafetensorsSeeds, DamagedSafetensors, 20000};
}
FuzzTarget ConfigTarget() { return {"config", CheckConfig, ConfigSeeds, DamageConfig, 8000}; }
FuzzTarget AdapterTarget() { return {"adapter", CheckAdapter, AdapterSeeds, DamageAdapter, 8000}; }

}  // namespace espalier
