// A folder of its own for one test, gone with the test. Header only: shared by the tests of
// coordinator/journal, launcher, loop and service. Used by tests/coordinator/
// and tests/common/platform.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace espalier {

class ScratchFolder {
 public:
  ScratchFolder() {
    std::string pattern = ::testing::TempDir() + "/espalier-XXXXXX";
    EXPECT_NE(mkdtemp(pattern.data()), nullptr) << pattern;
    root_ = pattern;
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(root_, ignored);
  }

  std::string path(const std::string& name) const { return root_ + "/" + name; }
  const std::string& root() const { return root_; }

  void Write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name), std::ios::binary) << text;
  }
  std::string Read(const std::string& name) const {
    std::ifstream file(path(name), std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }
  // A script that the owner may run.
  std::string WriteScript(const std::string& name, const std::string& text) const {
    Write(name, text);
    std::filesystem::permissions(path(name), std::filesystem::perms::owner_all);
    return path(name);
  }

 private:
  std::string root_;
};

}  // namespace espalier
