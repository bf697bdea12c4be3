#include "worker/train/rehearsal.h"

#include <memory>
#include <vector>

#include "common/spec/spec_json.h"
#include "worker/comm/self_communicator.h"
#include "worker/provider/builtin.h"
#include "worker/train/training.h"

namespace muster {
namespace {

constexpr int64_t kSteps = 2;

// Nobody hears of it.
class Audience final : public TrainerHost {
 public:
  explicit Audience(const std::function<bool()>& is_wanted) : is_wanted_(is_wanted) {}
  void Send(TrainerToAgent) override {}
  std::vector<Directive> TakeDirectives() override { return {}; }
  bool ExitSignalReceived() override { return is_wanted_(); }

 private:
  const std::function<bool()>& is_wanted_;
};

}  // namespace

JobSpec RehearsalOf(const JobSpec& spec) {
  const ModelSpec& model = spec.model;
  JobSpec tiny;
  tiny.name = "rehearsal";
  tiny.model.num_layers = 1;
  // Large enough for the loops that several threads share.
  tiny.model.hidden_size = 128;
  tiny.model.num_attention_heads = 2;
  tiny.model.seq_length = 256;
  tiny.model.vocab_size = 512;
  tiny.model.position_embedding_type = model.position_embedding_type;
  tiny.model.normalization = model.normalization;
  tiny.model.swiglu = model.swiglu;
  tiny.model.add_bias_linear = model.add_bias_linear;
  tiny.model.add_qkv_bias = model.add_qkv_bias;
  tiny.model.qk_layernorm = model.qk_layernorm;
  tiny.model.attention_dropout = model.attention_dropout;
  tiny.model.hidden_dropout = model.hidden_dropout;
  tiny.data.dataset_provider = "mock";
  tiny.training.micro_batch_size = 1;
  tiny.training.train_iters = kSteps;
  tiny.training.bf16 = spec.training.bf16;
  tiny.training.fp16 = spec.training.fp16;
  tiny.training.fp64 = spec.training.fp64;
  tiny.optimizer = spec.optimizer;
  tiny.evaluation.eval_iters = 0;
  tiny.parallel.distributed_backend = "gloo";
  tiny.rerun.mode = spec.rerun.mode;
  tiny.rerun.rerun_elsewhere = false;
  tiny.resources.device = spec.resources.device;
  return tiny;
}

absl::Status Rehearse(const JobSpec& spec, c10::Device device, Clock& clock,
                      const std::function<bool()>& is_wanted) {
  ParsedSpec parsed = ParseJobSpec(JobSpecToJson(RehearsalOf(spec)));
  if (!parsed.problems.empty()) return absl::FailedPreconditionError(parsed.problems[0].ToString());
  parsed.spec.training.log_interval = 0;  // no lines
  ProviderRegistry providers;
  RegisterBuiltinProviders(providers);
  Audience audience(is_wanted);
  return RunTraining({.spec = parsed.spec,
                      .world = MakeSelfCommunicator("world", 0),
                      .host = audience,
                      .providers = providers,
                      .clock = clock,
                      .device = device,
                      .process_start = clock.Steady()})
      .status();
}

}  // namespace muster
