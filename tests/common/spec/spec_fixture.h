// A good spec to break, for the tests of this folder.
#pragma once

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "common/spec/spec_json.h"
#include "gtest/gtest.h"

namespace muster {

inline std::string GoodSpec() {
  return R"({
    "name": "good",
    "model": {"num_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "seq_length": 32},
    "data": {"dataset_provider": "mock"},
    "training": {"micro_batch_size": 2, "global_batch_size": 8, "train_iters": 100},
    "optimizer": {"lr": 0.001},
    "resources": {"world_size": 2, "device": "cpu"}
  })";
}

// The good spec with settings changed as --set would.
inline std::string With(const std::vector<std::string>& settings) {
  absl::StatusOr<std::string> text = ApplySetOptions(GoodSpec(), settings);
  EXPECT_TRUE(text.ok()) << text.status();
  return text.ok() ? *text : "";
}

inline JobSpec ParsedWith(const std::vector<std::string>& settings) {
  const ParsedSpec parsed = ParseJobSpec(With(settings));
  for (const SpecProblem& problem : parsed.problems) ADD_FAILURE() << problem.ToString();
  return parsed.spec;
}

inline std::string Replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

inline std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path;
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

}  // namespace muster
