#include "worker/train/training.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "common/base/status.h"
#include "worker/train/step_rerun.h"
#include "worker/train/training_loop.h"

namespace muster {
namespace {

// The rerun machine of this attempt, and the iterations that its tracker file says to skip.
// Collective.
absl::Status PrepareRerun(const TrainingOptions& options, JobState& state,
                          std::vector<std::string> large_values) {
  StepRerunOptions rerun{
      .spec = state.spec,
      .job_id = options.job_id,
      .rank = state.parallel.rank(),
      .place = options.place,
      .event = [&host = options.host, epoch = options.epoch](const std::string& text) {
        host.Send(EventMessage{.epoch = epoch, .kind = "rerun", .text = text});
      }};
  if (state.spec.rerun.rerun_elsewhere) {
    rerun.report = [&host = options.host, epoch = options.epoch](int64_t iteration,
                                                                 const std::string& json) {
      host.Send(ExamineMessage{.epoch = epoch, .iteration = iteration, .json = json});
    };
    rerun.order_json = options.examine_json;
  }
  rerun.large_values = std::move(large_values);
  ASSIGN_OR_RETURN(state.rerun, StepRerun::Create(rerun, state.rerun.get()));
  ASSIGN_OR_RETURN(const std::vector<int64_t> more,
                   StepRerun::IterationsToSkip(state.spec, state.parallel.world(), options.device));
  std::vector<int64_t>& skip = state.spec.training.iterations_to_skip;
  for (const int64_t iteration : more) {
    if (std::find(skip.begin(), skip.end(), iteration) == skip.end()) skip.push_back(iteration);
  }
  return absl::OkStatus();
}

// For whoever asks what this rank is doing.
std::vector<OpArrival> ArrivalsOf(const OpProgress& progress) {
  std::vector<OpArrival> arrivals;
  for (OpProgress::Newest& newest : progress.NewestOperations()) {
    if (newest.ranks.size() == 1) continue;
    arrivals.push_back({.group = std::move(newest.group),
                        .ranks = std::move(newest.ranks),
                        .sequence = newest.sequence,
                        .operation = std::move(newest.operation),
                        .done = newest.done,
                        .age_ms = absl::ToDoubleMilliseconds(newest.age)});
  }
  return arrivals;
}

const char* NameOf(RestoreDecision::Source source) {
  switch (source) {
    case RestoreDecision::Source::kBeginning:
      return "beginning";
    case RestoreDecision::Source::kCheckpoint:
      return "checkpoint";
    case RestoreDecision::Source::kSnapshot:
      return "snapshot";
    case RestoreDecision::Source::kLive:
      return "live";
  }
  return "";
}

absl::StatusOr<TrainingResult> RestoreAndTrain(const TrainingOptions& options, AttemptState& kept) {
  auto phase = [&](const char* name) {
    options.host.Send(PhaseMessage{.epoch = options.epoch, .phase = name, .detail = ""});
  };
  const absl::Duration start = options.clock.Steady();
  const bool helps = options.world->rank() >= options.spec.resources.world_size;
  phase(helps ? "helping" : "restoring");
  ASSIGN_OR_RETURN(const Restored restored,
                   RestoreJob({.spec = options.spec,
                               .members = options.world,
                               .host = options.host,
                               .providers = options.providers,
                               .epoch = options.epoch,
                               .directives_through = options.directives_through,
                               .ledger_through = options.ledger_through,
                               .device = options.device,
                               .kept = kept,
                               .prepare =
                                   [&](JobState& state) {
                                     return PrepareRerun(options, state,
                                                         std::exchange(kept.large_values, {}));
                                   },
                               .buddy = options.buddy}));
  if (restored.world == nullptr) {
    kept = AttemptState();
    return TrainingResult{.reason = "gave its state away", .helped = true};
  }
  JobState& state = *kept.state;
  options.host.WatchOperations(
      [progress = state.parallel.progress()] { return ArrivalsOf(*progress); });
  if (!kept.data.has_value()) phase("data");
  ASSIGN_OR_RETURN(kept.data,
                   JobData::Build(state, options.providers, kept.data, std::move(kept.warm_data)));
  const bool is_recovery = options.epoch > 1 || options.ledger_through > 0;
  if (state.parallel.rank() == 0 && is_recovery) {
    options.host.Send(
        RestoredMessage{.epoch = options.epoch,
                        .iteration = state.progress.iteration,
                        .source = NameOf(restored.decision.source),
                        .text = restored.decision.reason,
                        .form_ms = absl::ToDoubleMilliseconds(options.form_time),
                        .state_ms = absl::ToDoubleMilliseconds(options.clock.Steady() - start),
                        .bytes = restored.bytes_moved});
  }
  return RunTrainingLoop(options, kept, restored);
}

}  // namespace

absl::StatusOr<TrainingResult> RunTraining(const TrainingOptions& options) {
  // Tensor code throws. Whoever runs ranks wants a status: it has peers to free.
  AttemptState nothing;
  try {
    return RestoreAndTrain(options, options.kept == nullptr ? nothing : *options.kept);
  } catch (const CollectiveError& error) {
    return error.status;
  } catch (const c10::AcceleratorError&) {
    throw;  // the device: whoever owns the process must end it
  } catch (const c10::Error& error) {
    return absl::InternalError(error.what_without_backtrace());
  } catch (const std::exception& error) {
    return absl::InternalError(error.what());
  }
}

}  // namespace muster
