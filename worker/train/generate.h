// `muster-trainer --generate`: loads a checkpoint of any layout into one process and continues a
// prompt. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "worker/provider/provider.h"
#include "worker/train/sampler.h"

namespace muster {

struct GenerateOptions {
  std::string checkpoint;            // the folder that checkpoint.save named
  std::optional<int64_t> ckpt_step;  // not set: the newest
  std::string prompt;
  int64_t max_new_tokens = 100;
  SamplingOptions sampling;
  int64_t seed = 1234;
  const ProviderRegistry& providers;
};

// Calls `on_text` with the prompt, then with each piece as it is drawn; ends at the end-of-document
// token. NOT_FOUND: no checkpoint there; INVALID_ARGUMENT names the option.
absl::Status Generate(const GenerateOptions& options,
                      const std::function<void(const std::string&)>& on_text);

}  // namespace muster
