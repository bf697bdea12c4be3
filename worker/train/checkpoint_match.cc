#include "worker/train/checkpoint_match.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace muster {

absl::Status CheckSameModel(const JobSpec& saved, const JobSpec& ours) {
  auto differs = [](const char* field, const auto& in_checkpoint, const auto& in_spec) {
    return absl::FailedPreconditionError(absl::StrCat(field, "=", in_spec,
                                                      ", but the checkpoint was saved with ",
                                                      in_checkpoint, ": they must be equal"));
  };
  const ModelSpec& a = saved.model;
  const ModelSpec& b = ours.model;
  if (a.num_layers != b.num_layers) return differs("model.num_layers", a.num_layers, b.num_layers);
  if (a.hidden_size != b.hidden_size)
    return differs("model.hidden_size", a.hidden_size, b.hidden_size);
  if (a.num_attention_heads != b.num_attention_heads) {
    return differs("model.num_attention_heads", a.num_attention_heads, b.num_attention_heads);
  }
  if (a.position_embedding_type != b.position_embedding_type) {
    return differs("model.position_embedding_type", a.position_embedding_type,
                   b.position_embedding_type);
  }
  // One way a tensor is missing; the other way the saved output layer would be left out unseen.
  if (a.untie_embeddings_and_output_weights != b.untie_embeddings_and_output_weights) {
    const auto text = [](bool untied) { return untied ? "true" : "false"; };
    return differs("model.untie_embeddings_and_output_weights",
                   text(a.untie_embeddings_and_output_weights),
                   text(b.untie_embeddings_and_output_weights));
  }
  if (ours.training.data_parallel_random_init && !saved.training.data_parallel_random_init) {
    return differs("training.data_parallel_random_init", "false", "true");
  }
  return absl::OkStatus();
}

bool SameRanks(const JobSpec& a, const JobSpec& b) {
  const ParallelSpec &p = a.parallel, &q = b.parallel;
  return a.resources.world_size == b.resources.world_size &&
         p.tensor_model_parallel_size == q.tensor_model_parallel_size &&
         p.pipeline_model_parallel_size == q.pipeline_model_parallel_size &&
         p.context_parallel_size == q.context_parallel_size &&
         p.expert_model_parallel_size == q.expert_model_parallel_size && p.order == q.order;
}

std::optional<std::string> NoteOnVocabulary(const JobSpec& saved, const ResolvedSpec& ours) {
  const int64_t here = ours.padded_vocab_size;
  const int64_t there = Resolve(saved, ours.vocab_size).padded_vocab_size;
  if (here == there) return std::nullopt;
  return absl::StrCat("the vocabulary of ", ours.vocab_size, " tokens is padded to ", here,
                      ", in the checkpoint to ", there,
                      ": losses move a little, as the padding is part of the softmax; "
                      "model.make_vocab_size_divisible_by sets it");
}

std::optional<std::string> NoteOnUnread(const std::vector<std::string>& unread) {
  std::vector<std::string> weights;
  for (const std::string& name : unread) {
    if (!absl::StartsWith(name, "optimizer.")) weights.push_back(name);
  }
  if (weights.empty()) return std::nullopt;
  constexpr size_t kNamed = 3;
  const bool more = weights.size() > kNamed;
  const size_t count = weights.size();
  if (more) weights.resize(kNamed);
  return absl::StrCat(count, " tensors of the checkpoint have no place in this model and are left ",
                      "out: ", absl::StrJoin(weights, ", "), more ? ", ..." : "");
}

}  // namespace muster
