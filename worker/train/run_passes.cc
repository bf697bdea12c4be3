#include "worker/train/run_passes.h"

#include "common/base/status.h"
#include "common/schedule/from_spec.h"

namespace muster {
namespace {

// Of one chunk's output: (S / cp [/ tp], B, H).
std::vector<int64_t> HiddenShape(const JobSpec& spec, int64_t micro_batch_size) {
  const ParallelSpec& p = spec.parallel;
  int64_t seq = spec.model.seq_length / p.context_parallel_size;
  if (p.sequence_parallel) seq /= p.tensor_model_parallel_size;
  return {seq, micro_batch_size, spec.model.hidden_size};
}

ScheduleOptions ScheduleOf(const JobState& state, const PassesOptions& options) {
  const int virtual_pp = static_cast<int>(state.chunks.size());
  if (options.forward_only)
    return ForwardOnlyScheduleOptionsOf(state.spec, virtual_pp, options.num_microbatches);
  ScheduleOptions schedule = ScheduleOptionsOf(state.spec, virtual_pp, options.num_microbatches);
  // param_sync_func is taken away while the forward pre-hooks are off (reference 12.2).
  if (!state.ddp->forward_pre_hook_enabled()) schedule.has_param_sync_func = false;
  return schedule;
}

// Records how long each microbatch takes to come.
class TracedIterator final : public DataIterator {
 public:
  TracedIterator(DataIterator* data, TraceRecorder* trace) : data_(data), trace_(trace) {}
  absl::StatusOr<Batch> Next() override {
    const TraceScope scope(trace_, TraceKind::kData, "data");
    return data_->Next();
  }

 private:
  DataIterator* const data_;
  TraceRecorder* const trace_;
};

}  // namespace

absl::StatusOr<ForwardBackwardResult> RunPasses(JobState& state, const DataIterators& data,
                                                const PassesOptions& options) {
  const JobSpec& spec = state.spec;
  const ScheduleOptions schedule_options = ScheduleOf(state, options);
  Communicator& pp = state.parallel.Group("pp");
  ASSIGN_OR_RETURN(const RankSchedule schedule, MakeRankSchedule(schedule_options, pp.rank()));
  ForwardBackwardOptions run{
      .schedule = schedule,
      .num_microbatches = options.num_microbatches,
      .forward_step = *state.forward_step,
      .ddp = options.forward_only ? nullptr : state.ddp.get(),
      .calculate_per_token_loss = !options.forward_only && spec.training.calculate_per_token_loss,
      .loss_scale = options.loss_scale,
      .context_parallel_size = static_cast<int>(spec.parallel.context_parallel_size),
      .pp = &pp,
      .hidden_shape = HiddenShape(spec, options.micro_batch_size),
      .hidden_dtype = ParamsDtype(spec),
      .device = state.device,
      .overlap_p2p_comm = schedule_options.overlap_p2p_comm,
      .trace = state.trace};
  // Of the MoE layers' losses, which join in the backward passes (reference 5.1).
  state.experts->SetSideLossScale(run.calculate_per_token_loss
                                      ? run.loss_scale
                                      : run.loss_scale * run.context_parallel_size /
                                            static_cast<double>(run.num_microbatches));
  for (const auto& chunk : state.chunks) run.chunks.push_back(chunk.get());
  std::vector<TracedIterator> traced;
  traced.reserve(data.size());
  for (const auto& iterator : data) {
    run.data.push_back(iterator.get());
    if (state.trace != nullptr) run.data.back() = &traced.emplace_back(iterator.get(), state.trace);
  }
  return RunForwardBackward(run);
}

}  // namespace muster
