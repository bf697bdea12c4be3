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
  int max_restarts = 0;  // what fails has failed
  bool elastic = false;
  bool sharded = false;  // the optimizer's state, over data parallelism
  int snapshot_interval = 10;
  int tensor_parallel = 1;
  int wait_for_workers_s = 600;
  bool skip_poisoned_batch = false;
  int restart_window_s = 3600;
};

inline std::string TestSpec(const TestSpecOptions& options = {}) {
  return absl::StrCat(
      R"({"name": "test",
          "model": {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "seq_length": 32,
                    "vocab_size": 300},
          "parallel": {"distributed_backend": "gloo", "tensor_model_parallel_size": )",
      options.tensor_parallel, options.sharded ? R"(, "use_distributed_optimizer": true)" : "",
      R"(},
          "data": {"dataset_provider": "mock"},
          "optimizer": {"lr": 0.001},
          "training": {"micro_batch_size": 1, "train_iters": )",
      options.train_iters, "},", R"("checkpoint": {)",
      options.save.empty() ? ""
                           : absl::StrCat(R"("save": ")", options.save, R"(", "save_interval": 5)"),
      R"(}, "recovery": {"max_restarts": )", options.max_restarts, R"(, "snapshot_interval": )",
      options.snapshot_interval, R"(, "max_failures_of_step": 100, "restart_window_s": )",
      options.restart_window_s, R"(, "wait_for_workers_s": )", options.wait_for_workers_s,
      options.elastic ? R"(, "elastic": true)" : "",
      options.skip_poisoned_batch ? R"(, "skip_poisoned_batch": true)" : "",
      R"(}, "resources": {"world_size": )", options.world_size, R"(, "spares": )", options.spares,
      R"(, "priority": )", options.priority, "}}");
}

}  // namespace muster
