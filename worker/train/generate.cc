#include "worker/train/generate.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/tokenizer/tokenizer.h"
#include "worker/comm/self_communicator.h"
#include "worker/train/checkpointing.h"
#include "worker/train/job_state.h"

namespace muster {
namespace {

// Logits of the token after `ids`; at most the model's sequence length of them is read.
at::Tensor NextLogits(JobState& state, const std::vector<int64_t>& ids) {
  const auto length =
      std::min<int64_t>(static_cast<int64_t>(ids.size()), state.spec.model.seq_length);
  Batch batch;
  batch.tokens =
      at::tensor(at::ArrayRef<int64_t>(ids.data() + ids.size() - length, length), at::kLong)
          .unsqueeze(0);
  batch.position_ids = at::arange(length, at::kLong).unsqueeze(0);
  const at::Tensor logits = state.chunks[0]->Forward(batch, at::Tensor());  // (1, length, V)
  return logits[0][length - 1];
}

}  // namespace

absl::Status Generate(const GenerateOptions& options,
                      const std::function<void(const std::string&)>& on_text) {
  ASSIGN_OR_RETURN(const JobSpec spec, SpecOfCheckpoint(options.checkpoint, options.ckpt_step));
  ASSIGN_OR_RETURN(
      std::unique_ptr<JobState> state,
      BuildJobState(spec, options.providers, MakeSelfCommunicator("world", 0), c10::kCPU));
  RETURN_IF_ERROR(LoadWeights(*state, options.checkpoint, options.ckpt_step));
  ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer,
                   MakeTokenizer(spec.data.tokenizer_type, spec.data.tokenizer_model));
  std::vector<int64_t> ids = tokenizer->Encode(options.prompt);
  // Without a prompt the model begins a document.
  if (ids.empty()) ids.push_back(tokenizer->eod());

  c10::AutoGradMode no_grad(false);
  state->chunks[0]->SetTraining(false);
  at::Generator generator = at::detail::createCPUGenerator(static_cast<uint64_t>(options.seed));
  on_text(options.prompt);
  for (int64_t i = 0; i < options.max_new_tokens; ++i) {
    const int64_t next =
        SampleToken(NextLogits(*state, ids), tokenizer->vocab_size(), options.sampling, generator);
    if (next == tokenizer->eod()) break;
    ids.push_back(next);
    on_text(tokenizer->Decode({next}));
  }
  return absl::OkStatus();
}

}  // namespace muster
