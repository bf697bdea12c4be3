// Rules on the job as a whole, the model, the data and the checkpoints.
#include <cctype>
#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/spec/data_blend.h"
#include "common/spec/validate_rules.h"

namespace muster {
namespace {

bool IsVariableName(absl::string_view name) {
  if (name.empty() || std::isdigit(static_cast<unsigned char>(name[0])) != 0) return false;
  for (const char c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '_') return false;
  }
  return true;
}

}  // namespace

void CheckJob(const JobSpec& spec, RuleReport* report) {
  constexpr size_t kLongestName = 100;
  if (report->Good({"name"}) &&
      (spec.name.size() > kLongestName || absl::StrContains(spec.name, "/"))) {
    report->Add("name", absl::StrCat("must have at most ", kLongestName, " bytes and no '/'"));
  }
  const ResourcesSpec& resources = spec.resources;
  if (report->Good({"resources.env"})) {
    for (const auto& [name, value] : resources.env) {
      if (!IsVariableName(name) || absl::StrContains(value, absl::string_view("\0", 1))) {
        report->Add("resources.env",
                    absl::StrCat("\"", name, "\" is not a variable name: letters, digits and '_'"));
      } else if (absl::StartsWith(name, "LD_") || absl::StartsWith(name, "MUSTER_")) {
        // A job must not load code into a worker, or speak for its agent.
        report->Add("resources.env",
                    absl::StrCat("\"", name, "\" is the workers' operator's to set; remove it"));
      } else if (name == "OMP_NUM_THREADS") {
        report->Add("resources.env",
                    "\"OMP_NUM_THREADS\" is set by the agent; use training.num_threads");
      } else if (name == "CUDA_VISIBLE_DEVICES") {
        report->Add("resources.env",
                    "\"CUDA_VISIBLE_DEVICES\" would renumber the device that the agent gives; "
                    "remove it, and choose devices with muster-worker --device");
      }
    }
  }
  if (report->Good({"resources.device", "parallel.distributed_backend"}) &&
      resources.device == "cpu" && spec.parallel.distributed_backend == "nccl") {
    report->Add("parallel.distributed_backend",
                "needs resources.device=\"cuda\"; on cpu use gloo, or leave it out");
  }
  if (report->Good({"resources.device", "parallel.distributed_backend"}) &&
      resources.device == "cuda" && spec.parallel.distributed_backend == "gloo") {
    report->Add("parallel.distributed_backend",
                "needs resources.device=\"cpu\"; on cuda use nccl, or leave it out");
  }
  if (report->Good({"recovery.heartbeat_interval_ms", "recovery.heartbeat_timeout_ms"}) &&
      spec.recovery.heartbeat_timeout_ms <= spec.recovery.heartbeat_interval_ms) {
    report->Add("recovery.heartbeat_timeout_ms",
                absl::StrCat("must be greater than recovery.heartbeat_interval_ms=",
                             spec.recovery.heartbeat_interval_ms));
  }
}

void CheckProviders(const JobSpec& spec, RuleReport* report) {
  if (spec.plugin || !report->Good({"plugin"})) return;  // a plugin may register any name
  if (report->Good({"model.model_provider"}) && spec.model.model_provider != "gpt") {
    report->Add("model.model_provider", "must be gpt; another one needs the plugin that has it");
  }
  if (report->Good({"model.forward_step"}) && spec.model.forward_step != "gpt") {
    report->Add("model.forward_step", "must be gpt; another one needs the plugin that has it");
  }
  const std::string& dataset = spec.data.dataset_provider;
  if (report->Good({"data.dataset_provider"}) && dataset != "gpt" && dataset != "mock") {
    report->Add("data.dataset_provider",
                "must be gpt or mock; another one needs the plugin that has it");
  }
}

void CheckModel(const JobSpec& spec, RuleReport* report) {
  const ModelSpec& model = spec.model;
  if (!model.kv_channels &&
      report->Good({"model.hidden_size", "model.num_attention_heads", "model.kv_channels"}) &&
      model.hidden_size % model.num_attention_heads != 0) {
    report->Add("model.hidden_size",
                absl::StrCat("must be a multiple of model.num_attention_heads=",
                             model.num_attention_heads, ", or set model.kv_channels"));
  }
  if (model.num_query_groups &&
      report->Good({"model.num_query_groups", "model.num_attention_heads"}) &&
      model.num_attention_heads % *model.num_query_groups != 0) {
    report->Add("model.num_query_groups",
                absl::StrCat("must divide model.num_attention_heads=", model.num_attention_heads));
  }
  if (model.max_position_embeddings && model.position_embedding_type == "learned_absolute" &&
      report->Good(
          {"model.seq_length", "model.max_position_embeddings", "model.position_embedding_type"}) &&
      model.seq_length > *model.max_position_embeddings) {
    report->Add("model.seq_length",
                absl::StrCat("must be at most model.max_position_embeddings=",
                             *model.max_position_embeddings, " with learned positions"));
  }
  if (model.position_embedding_type == "rope" &&
      report->Good({"model.hidden_size", "model.num_attention_heads", "model.kv_channels",
                    "model.rotary_percent", "model.position_embedding_type"})) {
    const int64_t head = model.kv_channels.value_or(model.hidden_size / model.num_attention_heads);
    const auto rotated = static_cast<int64_t>(static_cast<double>(head) * model.rotary_percent);
    if (rotated < 2 || rotated % 2 != 0) {
      report->Add("model.rotary_percent",
                  absl::StrCat("rotates ", rotated, " of a head's ", head,
                               " channels; the number must be even and at least 2"));
    }
  }
  if (model.swiglu && !model.ffn_hidden_size &&
      report->Good({"model.swiglu", "model.hidden_size", "model.ffn_hidden_size"}) &&
      model.hidden_size < 24) {  // 8/3 x hidden_size rounds down to nothing
    report->Add("model.hidden_size",
                "is too small for the default of model.ffn_hidden_size with swiglu (a multiple of "
                "64); set model.ffn_hidden_size");
  }
  constexpr int64_t kByteVocabulary = 257;  // 256 bytes and the end of document
  if (model.vocab_size && spec.data.tokenizer_type == "byte" &&
      report->Good({"model.vocab_size", "data.tokenizer_type"}) &&
      *model.vocab_size < kByteVocabulary) {
    report->Add("model.vocab_size",
                absl::StrCat("must be at least ", kByteVocabulary,
                             ", the byte tokenizer's vocabulary, or be left out"));
  }
}

void CheckData(const JobSpec& spec, RuleReport* report) {
  const DataSpec& data = spec.data;
  if (!report->Good({"data.dataset_provider", "data.data_path", "data.train_data_path",
                     "data.valid_data_path", "data.test_data_path"})) {
    return;
  }
  const bool per_split = !data.train_data_path.empty() || !data.valid_data_path.empty() ||
                         !data.test_data_path.empty();
  const bool has_paths = per_split || !data.data_path.empty();
  if (data.dataset_provider == "mock" && has_paths) {
    report->Add("data.dataset_provider",
                "reads no files; remove the data paths, or use dataset_provider gpt");
  }
  if (data.dataset_provider == "gpt" && !has_paths) {
    report->Add("data.data_path",
                "is required by dataset_provider gpt (or train_data_path, valid_data_path and "
                "test_data_path); dataset_provider mock needs no data");
  }
  if (per_split && !data.data_path.empty()) {
    report->Add("data.data_path",
                "excludes train_data_path, valid_data_path and test_data_path; keep one form");
  }
  if (per_split && data.split && report->Good({"data.split"})) {
    report->Add("data.split",
                "is for data_path only; with a path for each split every file is used whole");
  }
  if (per_split && data.train_data_path.empty() && !spec.training.skip_train) {
    report->Add("data.train_data_path", "is required next to the other splits' paths to train");
  }
  if (data.split && report->Good({"data.split"})) {
    if (const std::string wrong = SplitProblem(*data.split); !wrong.empty()) {
      report->Add("data.split", wrong);
    }
  }
  const struct {
    const char* field;
    const std::vector<std::string>& paths;
  } lists[] = {{"data.data_path", data.data_path},
               {"data.train_data_path", data.train_data_path},
               {"data.valid_data_path", data.valid_data_path},
               {"data.test_data_path", data.test_data_path}};
  for (const auto& list : lists) {
    if (const std::string wrong = BlendProblem(list.paths); !wrong.empty()) {
      report->Add(list.field, wrong);
    }
  }
  if (!report->Good({"data.tokenizer_type", "data.tokenizer_model"})) return;
  if (data.tokenizer_type == "byte" && data.tokenizer_model) {
    report->Add("data.tokenizer_model",
                "is not used by tokenizer_type byte; remove it, or set the type");
  }
  if (data.tokenizer_type != "byte" && !data.tokenizer_model) {
    report->Add("data.tokenizer_model",
                absl::StrCat("is required by tokenizer_type ", data.tokenizer_type));
  }
}

void CheckCheckpoint(const JobSpec& spec, RuleReport* report) {
  const CheckpointSpec& checkpoint = spec.checkpoint;
  if (!report->Good({"checkpoint.save", "checkpoint.save_interval", "checkpoint.load",
                     "checkpoint.save_retain_interval", "checkpoint.ckpt_step"})) {
    return;
  }
  if (checkpoint.save && !checkpoint.save_interval) {
    report->Add("checkpoint.save_interval", "is required by checkpoint.save");
  }
  if (checkpoint.save_retain_interval && !checkpoint.save_interval) {
    report->Add("checkpoint.save_retain_interval", "needs checkpoint.save_interval");
  }
  if (checkpoint.save_retain_interval && checkpoint.save_interval &&
      *checkpoint.save_retain_interval % *checkpoint.save_interval != 0) {
    report->Add(
        "checkpoint.save_retain_interval",
        absl::StrCat("must be a multiple of checkpoint.save_interval=", *checkpoint.save_interval));
  }
  if (checkpoint.ckpt_step && !checkpoint.load) {
    report->Add("checkpoint.ckpt_step", "needs checkpoint.load");
  }
}

}  // namespace muster
