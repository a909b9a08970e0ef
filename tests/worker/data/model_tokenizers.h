// Tokenizers of models with chat templates, from tests/data. Used by tests/worker/data. One thread.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/worker/support/test_folder.h"
#include "worker/tokenizer/open_tokenizer.h"

namespace espalier {

inline constexpr char kTestData[] = ESPALIER_SOURCE_DIR "/tests/data/";

// `chat_template`: a file of tests/data/chat_templates, or a template; "" for none.
inline std::unique_ptr<Tokenizer> ModelTokenizer(const std::string& name,
                                                 const std::string& chat_template,
                                                 const std::string& bos, const std::string& eos) {
  const TestFolder folder;
  folder.Write("tokenizer.json", ReadText(kTestData + ("tokenizers/" + name) + "/tokenizer.json"));
  nlohmann::json config{{"eos_token", eos}};
  if (!bos.empty()) config["bos_token"] = bos;
  if (!chat_template.empty()) {
    const bool file = chat_template.find('{') == std::string::npos;
    config["chat_template"] =
        file ? ReadText(kTestData + ("chat_templates/" + chat_template)) : chat_template;
  }
  folder.Write("tokenizer_config.json", config.dump());
  auto tokenizer = OpenTokenizer(folder.path());
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

inline const Tokenizer& Llama3() {
  static const Tokenizer& tokenizer =
      *ModelTokenizer("llama-tiny", "llama3.jinja", "<|begin_of_text|>", "<|eot_id|>").release();
  return tokenizer;
}
inline const Tokenizer& SmolLm() {
  static const Tokenizer& tokenizer =
      *ModelTokenizer("smollm2-tiny", "smollm2.jinja", "<|im_start|>", "<|im_end|>").release();
  return tokenizer;
}

}  // namespace espalier
