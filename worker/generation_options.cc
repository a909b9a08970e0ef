// Options of `generate`, `chat` and `serve`.
#include <unistd.h>

#include <CLI/CLI.hpp>

#include "worker/verbs.h"

namespace espalier {
namespace {

constexpr char kGenerateAbout[] =
    "Continue a text with a trained model.\n"
    "Example: espalier generate --checkpoint checkpoints/step-00001500 --prompt '// Returns' \\\n"
    "           --temperature 0.7 --max-tokens 300";
constexpr char kChatAbout[] =
    "Talk to a trained model, in its chat template. Ctrl-C stops an answer.\n"
    "Example: espalier chat --model ~/models/SmolLM2-360M-Instruct --temperature 0.7";
constexpr char kServeAbout[] =
    "Let programs talk to a trained model by OpenAI's HTTP interface.\n"
    "Example: espalier serve --model checkpoints/step-00001500 --port 8080\n"
    "         curl http://127.0.0.1:8080/v1/completions -H 'Content-Type: application/json' \\\n"
    "           -d '{\"prompt\": \"// Returns\", \"max_tokens\": 60}'";
constexpr char kFolder[] = "Checkpoint, a folder of them (the newest), or any model folder";

void AddPlace(CLI::App& app, const char* folder, ModelPlace& place) {
  app.add_option(folder, place.folder, kFolder)->required();
  app.add_option("--adapter", place.adapter,
                 "Folder of adapters to put on the model (adapter_config.json), as PEFT has them");
  app.add_option("--device", place.device, "auto, cpu, cuda or mps")->capture_default_str();
  app.add_option("--precision", place.precision, "What is computed in: fp32, bf16 or fp16")
      ->capture_default_str();
  app.add_option("--threads", place.threads, "Compute threads; 0: the cores that pay")
      ->capture_default_str();
}

constexpr char kMaxTokens[] = "--max-tokens,--max-new-tokens";

void AddSampling(CLI::App& app, Sequence& sequence, std::vector<std::string>& stop) {
  SampleOptions& o = sequence.sample;
  app.add_option("--temperature", o.temperature, "0: always the likeliest")->capture_default_str();
  app.add_option("--top-k", o.top_k, "Only the k likeliest; 0: all")->capture_default_str();
  app.add_option("--top-p", o.top_p, "Only the likeliest that reach this probability")
      ->capture_default_str();
  app.add_option("--min-p", o.min_p, "Only those at least this part as likely as the likeliest")
      ->capture_default_str();
  app.add_option("--repetition-penalty", o.repetition_penalty,
                 "Makes what was said less likely; 1: not")
      ->capture_default_str();
  app.add_option("--stop", stop, "End before this text; may be repeated")
      ->type_size(1)
      ->allow_extra_args(false)
      ->check([](const std::string& text) {
        return std::string(text.empty() ? "an empty text is everywhere" : "");
      });
  app.add_option("--seed", sequence.seed, "Seed of the choices")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
}

}  // namespace

void AddGenerate(CLI::App& parent, GenerateCommand& command) {
  CLI::App& app = *parent.add_subcommand("generate", kGenerateAbout);
  AddPlace(app, "--checkpoint,--model", command.place);
  app.add_option("--prompt", command.prompt, "Text to continue; default: begin a document");
  app.add_flag("--chat", command.chat,
               "The prompt is a message to the model: frame it by the model's chat template");
  app.add_option(kMaxTokens, command.max_tokens,
                 "Most new tokens; default: 200, or as many as the model has positions for");
  AddSampling(app, command.sequence, command.stop);
}

void AddChat(CLI::App& parent, ChatCommand& command) {
  CLI::App& app = *parent.add_subcommand("chat", kChatAbout);
  command.sequence.max_new_tokens = 512;
  command.terminal = isatty(STDIN_FILENO) != 0;
  AddPlace(app, "--model,--checkpoint", command.place);
  app.add_option("--system", command.system, "What the model is told before all else");
  app.add_option(kMaxTokens, command.sequence.max_new_tokens, "Most new tokens of an answer")
      ->capture_default_str();
  AddSampling(app, command.sequence, command.stop);
  app.add_option("--context", command.context,
                 "Most tokens of a conversation, which take memory; the model's at most")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
}

void AddServe(CLI::App& parent, ServeCommand& command) {
  CLI::App& app = *parent.add_subcommand("serve", kServeAbout);
  AddPlace(app, "--model,--checkpoint", command.place);
  app.add_option("--name", command.name, "The model's name to clients; default: its folder's");
  app.add_option("--host", command.host,
                 "Address of this machine alone to listen on: 127.0.0.1, ::1, localhost")
      ->capture_default_str();
  app.add_option("--port", command.port, "0: one that is free")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  CLI::Option* key = app.add_option("--api-key", command.api_key, "What clients have to show");
  app.add_option("--api-key-file", command.api_key_file,
                 "A file with it, which other users of the machine cannot see as they do a command")
      ->excludes(key);
  app.add_option("--batch", command.rows, "Answers that are generated at a time")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--context", command.context,
                 "Most tokens of a prompt with its answer, which take memory; the model's at most")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--queue", command.most_waiting, "Answers that may wait; more are refused (429)")
      ->check(CLI::Range(0, 100000))
      ->capture_default_str();
}

}  // namespace espalier
