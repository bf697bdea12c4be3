#include "worker/train/checkpointing.h"

#include <optional>
#include <string>
#include <utility>

#include <ATen/core/Tensor.h>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/rerun/rerun_json.h"
#include "common/schedule/from_spec.h"
#include "worker/checkpoint/assign_writers.h"
#include "worker/comm/self_communicator.h"
#include "worker/train/checkpoint_json.h"
#include "worker/train/checkpoint_match.h"
#include "worker/train/job_tensors.h"
#include "worker/train/step_rerun.h"

namespace muster {
namespace {

absl::StatusOr<JobSpec> ParseSavedSpec(const std::string& json) {
  ParsedSpec parsed = ParseJobSpec(json);
  if (!parsed.problems.empty()) {
    return absl::DataLossError(
        absl::StrCat("the checkpoint's spec: ", parsed.problems[0].ToString()));
  }
  return std::move(parsed.spec);
}

// Generators belong to (pipeline, tensor) coordinates; replicas and context-parallel ranks share
// them (reference 11.1).
absl::Status LoadRng(JobState& state, const LoadedCheckpoint& loaded, const JobSpec& saved) {
  if (saved.parallel.tensor_model_parallel_size != state.spec.parallel.tensor_model_parallel_size ||
      saved.parallel.pipeline_model_parallel_size !=
          state.spec.parallel.pipeline_model_parallel_size) {
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const RankTopology topology, RankTopology::Create(TopologyOf(saved)));
  RankCoordinates where = state.parallel.coordinates();
  const bool same_replicas =
      saved.resources.world_size == state.spec.resources.world_size &&
      saved.parallel.context_parallel_size == state.spec.parallel.context_parallel_size;
  if (!same_replicas) where.dp = where.cp = 0;
  ASSIGN_OR_RETURN(const std::string rank_json, loaded.RankJson(topology.Rank(where)));
  ASSIGN_OR_RETURN(auto regions, DecodeRngState(rank_json));
  if (regions.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(loaded.path, " holds no random states (checkpoint.no_save_rng); set ",
                     "checkpoint.no_load_rng to go on with those of training.seed"));
  }
  return state.rng.LoadState(regions);
}

// What the rerun machine has learned, and the step that it examines. Another layout examines
// nothing: its ranks compute other things.
absl::StatusOr<std::optional<std::string>> LoadRerun(JobState& state,
                                                     const LoadedCheckpoint& loaded,
                                                     const std::string& common_json,
                                                     const JobSpec& saved) {
  if (state.rerun == nullptr || !state.rerun->enabled() || common_json.empty())
    return std::optional<std::string>();
  ASSIGN_OR_RETURN(const RerunCommonState common, DecodeRerunCommon(common_json));
  const bool examines = common.state != RerunState::kNotRunningYet;
  if (!SameRanks(saved, state.spec)) {
    if (!examines) return std::optional<std::string>();
    return std::optional<std::string>(
        "the checkpoint's step was under examination; in another layout it begins anew");
  }
  ASSIGN_OR_RETURN(const std::string rank_json, loaded.RankJson(state.parallel.rank()));
  ASSIGN_OR_RETURN(const std::string rerun_json, DecodeRankRerun(rank_json));
  if (rerun_json.empty()) return std::optional<std::string>();
  ASSIGN_OR_RETURN(const RerunRankState rank, DecodeRerunRank(rerun_json));
  state.rerun->machine().Load(common, rank);
  if (!examines) return std::optional<std::string>();
  return std::optional<std::string>(
      "the checkpoint's step is under examination: it is run again here");
}

LoadOptions LoadOptionsOf(const JobState& state, const std::string& root) {
  return {.root = root, .ckpt_step = state.spec.checkpoint.ckpt_step, .comm_device = state.device};
}

// What chooses the checkpoint: its state without tensors. NOT_FOUND: nothing was ever saved there.
absl::StatusOr<LoadedCheckpoint> LoadBase(const JobState& state, const std::string& root) {
  std::vector<NamedTensor> nothing;
  return LoadCheckpoint(LoadOptionsOf(state, root), nothing, state.parallel.world());
}

absl::StatusOr<LoadedJob> LoadFrom(JobState& state, const std::string& root,
                                   const LoadedCheckpoint& base, bool weights_only) {
  const JobSpec& spec = state.spec;
  Communicator& world = state.parallel.world();
  LoadOptions options = LoadOptionsOf(state, root);
  ASSIGN_OR_RETURN(CommonCheckpointState common, DecodeCommonState(base.common_json));
  ASSIGN_OR_RETURN(const JobSpec saved, ParseSavedSpec(common.spec_json));
  RETURN_IF_ERROR(Annotate(CheckSameModel(saved, spec), base.path));

  const bool load_optimizer =
      !weights_only && !spec.checkpoint.no_load_optim && state.optimizer != nullptr;
  if (load_optimizer && !common.lr_schedule.has_value()) {
    return absl::FailedPreconditionError(
        absl::StrCat(base.path, " holds no optimizer state (checkpoint.no_save_optim); set ",
                     "checkpoint.no_load_optim or checkpoint.finetune to begin with a fresh one"));
  }
  std::vector<NamedTensor> tensors = ModelTensors(state, TensorUse::kLoad);
  if (load_optimizer) {
    for (NamedTensor& tensor : OptimizerTensors(state, TensorUse::kLoad))
      tensors.push_back(std::move(tensor));
  }
  options.ckpt_step = base.iteration;  // the same one, should a newer one appear meanwhile
  options.list_unread = true;
  ASSIGN_OR_RETURN(const LoadedCheckpoint loaded, LoadCheckpoint(options, tensors, world));

  if (load_optimizer) {
    RETURN_IF_ERROR(state.optimizer->LoadGroupStates(common.optimizer_groups));
    state.optimizer->MainParamsLoaded();
    RETURN_IF_ERROR(
        state.lr_schedule->Load(*common.lr_schedule, common.progress.consumed_train_samples));
    ApplySchedule(*state.lr_schedule, *state.optimizer);
    if (common.loss_scaler.has_value()) state.loss_scaler->Load(*common.loss_scaler);
  } else if (state.optimizer != nullptr) {
    state.optimizer->ReloadMainParams();
  }
  LoadedJob job{.path = base.path,
                .iteration = base.iteration,
                .weights_only = weights_only,
                .notes = base.notes};
  if (auto note = NoteOnVocabulary(saved, state.sizes)) job.notes.push_back(*std::move(note));
  if (auto note = NoteOnUnread(loaded.unread)) job.notes.push_back(*std::move(note));
  if (weights_only) return job;
  state.progress = common.progress;
  const ConsumedSamples consumed =
      ResumePosition(SampleCountOptionsOf(spec, state.sizes), state.progress.iteration,
                     state.progress.consumed_train_samples, state.progress.consumed_valid_samples);
  state.progress.consumed_train_samples = consumed.train;
  state.progress.consumed_valid_samples = consumed.valid;
  if (!spec.checkpoint.no_load_rng) RETURN_IF_ERROR(LoadRng(state, base, saved));
  ASSIGN_OR_RETURN(auto note, LoadRerun(state, base, common.rerun_json, saved));
  if (note.has_value()) job.notes.push_back(*std::move(note));
  return job;
}

}  // namespace

absl::StatusOr<SavedCheckpoint> SaveJob(const JobState& state, int64_t epoch) {
  const CheckpointSpec& checkpoint = state.spec.checkpoint;
  if (!checkpoint.save.has_value())
    return absl::FailedPreconditionError(
        "checkpoint.save is not set: there is no folder to save to");

  CommonCheckpointState common{.spec_json = JobSpecToJson(state.spec), .progress = state.progress};
  CheckpointState saved{.iteration = state.progress.iteration,
                        .tensors = ModelTensors(state, TensorUse::kSave)};
  if (state.optimizer != nullptr && !checkpoint.no_save_optim) {
    for (NamedTensor& tensor : OptimizerTensors(state, TensorUse::kSave))
      saved.tensors.push_back(std::move(tensor));
    common.lr_schedule = state.lr_schedule->State();
    common.loss_scaler = state.loss_scaler->state();
    common.optimizer_groups = state.optimizer->GroupStates();
  }
  // Replicas of a slice are on ranks of one pipeline stage.
  RETURN_IF_ERROR(AssignWriters(saved.tensors, state.device, state.parallel.Group("tp_dp_cp")));
  if (state.rerun != nullptr)
    common.rerun_json = EncodeRerunCommon(state.rerun->machine().common());
  saved.common_json = EncodeCommonState(common);
  saved.rank_json = EncodeRngState(
      checkpoint.no_save_rng ? std::map<std::string, std::string>() : state.rng.SaveState(),
      state.rerun == nullptr ? "" : state.rerun->EncodeRank());
  return SaveCheckpoint(SaveOptions{.root = *checkpoint.save,
                                    .epoch = epoch,
                                    .save_retain_interval = checkpoint.save_retain_interval,
                                    .keep_last = checkpoint.keep_last,
                                    .comm_device = state.device},
                        saved, state.parallel.world());
}

absl::StatusOr<std::optional<LoadedJob>> LoadJob(JobState& state) {
  const CheckpointSpec& checkpoint = state.spec.checkpoint;
  if (checkpoint.load.has_value()) {
    absl::StatusOr<LoadedCheckpoint> base = LoadBase(state, *checkpoint.load);
    if (base.ok()) {
      absl::StatusOr<LoadedJob> job = LoadFrom(state, *checkpoint.load, *base, checkpoint.finetune);
      if (!job.ok()) return Annotate(job.status(), "checkpoint.load");
      return std::optional<LoadedJob>(*std::move(job));
    }
    // Only an empty folder lets a run start from scratch.
    if (!absl::IsNotFound(base.status())) return Annotate(base.status(), "checkpoint.load");
    if (checkpoint.exit_on_missing_checkpoint && !checkpoint.pretrained_checkpoint.has_value()) {
      return Annotate(base.status(),
                      "checkpoint.load (checkpoint.exit_on_missing_checkpoint is set)");
    }
  }
  if (checkpoint.pretrained_checkpoint.has_value()) {
    absl::StatusOr<LoadedCheckpoint> base = LoadBase(state, *checkpoint.pretrained_checkpoint);
    if (!base.ok()) return Annotate(base.status(), "checkpoint.pretrained_checkpoint");
    absl::StatusOr<LoadedJob> job =
        LoadFrom(state, *checkpoint.pretrained_checkpoint, *base, /*weights_only=*/true);
    if (!job.ok()) return Annotate(job.status(), "checkpoint.pretrained_checkpoint");
    return std::optional<LoadedJob>(*std::move(job));
  }
  return std::optional<LoadedJob>();
}

absl::StatusOr<int64_t> NewestSaved(const JobSpec& spec, int64_t ledger_through) {
  if (!spec.checkpoint.save.has_value() || ledger_through == 0) return -1;
  CommunicatorPtr self = MakeSelfCommunicator("world", 0);
  std::vector<NamedTensor> nothing;
  const absl::StatusOr<LoadedCheckpoint> base =
      LoadCheckpoint({.root = *spec.checkpoint.save}, nothing, *self);
  if (absl::IsNotFound(base.status())) return -1;
  if (!base.ok()) return Annotate(base.status(), "checkpoint.save");
  // A step is reported before it is saved, but its report may still be under way. What is newer is
  // of another job that saved there.
  return base->iteration <= ledger_through + 1 ? base->iteration : -1;
}

bool SavedHoldsAll(const JobSpec& spec, int64_t iteration) {
  if (spec.checkpoint.no_load_rng) return false;
  CommunicatorPtr self = MakeSelfCommunicator("world", 0);
  std::vector<NamedTensor> nothing;
  const absl::StatusOr<LoadedCheckpoint> base =
      LoadCheckpoint({.root = *spec.checkpoint.save, .ckpt_step = iteration}, nothing, *self);
  if (!base.ok()) return false;  // who loads it says why
  const absl::StatusOr<CommonCheckpointState> common = DecodeCommonState(base->common_json);
  // Of another layout it may have fewer rows of a padded vocabulary.
  return common.ok() && common->spec_json == JobSpecToJson(spec);
}

absl::StatusOr<LoadedJob> LoadSaved(JobState& state, int64_t iteration) {
  const std::string& root = *state.spec.checkpoint.save;
  std::vector<NamedTensor> nothing;
  absl::StatusOr<LoadedCheckpoint> base =
      LoadCheckpoint({.root = root, .ckpt_step = iteration, .comm_device = state.device}, nothing,
                     state.parallel.world());
  if (!base.ok()) return Annotate(base.status(), "checkpoint.save");
  absl::StatusOr<LoadedJob> job = LoadFrom(state, root, *base, /*weights_only=*/false);
  if (!job.ok()) return Annotate(job.status(), "checkpoint.save");
  return job;
}

absl::StatusOr<JobSpec> SpecOfCheckpoint(const std::string& root,
                                         std::optional<int64_t> ckpt_step) {
  CommunicatorPtr self = MakeSelfCommunicator("world", 0);
  std::vector<NamedTensor> nothing;
  ASSIGN_OR_RETURN(LoadedCheckpoint base,
                   LoadCheckpoint({.root = root, .ckpt_step = ckpt_step}, nothing, *self));
  ASSIGN_OR_RETURN(CommonCheckpointState common, DecodeCommonState(base.common_json));
  ASSIGN_OR_RETURN(JobSpec spec, ParseSavedSpec(common.spec_json));
  const std::string order = spec.parallel.order;
  spec.parallel = ParallelSpec();
  spec.parallel.order = order;
  spec.parallel.distributed_backend = "gloo";
  spec.resources.world_size = 1;
  spec.model.attention_dropout = spec.model.hidden_dropout = 0;
  spec.training.skip_train = true;
  spec.training.global_batch_size.reset();
  spec.training.rampup_batch_size.reset();
  return spec;
}

absl::Status LoadWeights(JobState& state, const std::string& root,
                         std::optional<int64_t> ckpt_step) {
  std::vector<NamedTensor> tensors = ModelTensors(state, TensorUse::kLoad);
  return LoadCheckpoint({.root = root, .ckpt_step = ckpt_step, .comm_device = state.device},
                        tensors, state.parallel.world())
      .status();
}

}  // namespace muster
