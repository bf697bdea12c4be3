// A small good spec for tests of the coordinator.
#pragma once

#include <string>

#include "absl/strings/str_cat.h"

namespace muster {

struct TestSpecOptions {
  int world_size = 2;
  int spares = 0;
  int priority = 0;
  std::string save;  // empty: saves nowhere
  int train_iters = 10;
};

inline std::string TestSpec(const TestSpecOptions& options = {}) {
  return absl::StrCat(
      R"({"name": "test",
          "model": {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "seq_length": 32,
                    "vocab_size": 300},
          "parallel": {"distributed_backend": "gloo"},
          "data": {"dataset_provider": "mock"},
          "optimizer": {"lr": 0.001},
          "training": {"micro_batch_size": 1, "train_iters": )",
      options.train_iters, "},", R"("checkpoint": {)",
      options.save.empty() ? ""
                           : absl::StrCat(R"("save": ")", options.save, R"(", "save_interval": 5)"),
      R"(}, "resources": {"world_size": )", options.world_size, R"(, "spares": )", options.spares,
      R"(, "priority": )", options.priority, "}}");
}

}  // namespace muster
