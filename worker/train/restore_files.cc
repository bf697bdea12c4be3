#include "worker/train/restore_files.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/model/parameter_init.h"
#include "worker/train/checkpointing.h"

namespace muster {
namespace {

absl::StatusOr<std::unique_ptr<JobState>> Build(const FileRestore& options) {
  std::optional<WithoutParameterInit> all_is_saved;
  if (options.saved.has_value() && SavedHoldsAll(options.spec, *options.saved))
    all_is_saved.emplace();
  return BuildJobState(options.spec, options.providers, options.world, options.device);
}

}  // namespace

absl::StatusOr<std::unique_ptr<JobState>> RestoreFromFiles(const FileRestore& options) {
  const auto phase = [&](const char* name) {
    options.host.Send(PhaseMessage{.epoch = options.epoch, .phase = name, .detail = ""});
  };
  const auto event = [&](std::string text) {
    if (options.world->rank() != 0) return;
    options.host.Send(
        EventMessage{.epoch = options.epoch, .kind = "loaded", .text = std::move(text)});
  };
  phase("building");
  ASSIGN_OR_RETURN(std::unique_ptr<JobState> state, Build(options));
  RETURN_IF_ERROR(options.prepare(*state));
  phase("loading");
  std::optional<LoadedJob> loaded;
  if (options.saved.has_value()) {
    ASSIGN_OR_RETURN(loaded, LoadSaved(*state, *options.saved));
  } else {
    ASSIGN_OR_RETURN(loaded, LoadJob(*state));
  }
  if (loaded.has_value()) {
    event(absl::StrCat("loaded ", loaded->path, loaded->weights_only ? " (weights only)" : "",
                       ": the run begins at iteration ", state->progress.iteration));
    for (const std::string& note : loaded->notes) event(note);
  } else if (options.spec.checkpoint.load.has_value()) {
    event(absl::StrCat("checkpoint.load=", *options.spec.checkpoint.load,
                       " holds no checkpoint: the run begins at iteration 0"));
  }
  state->consumed_valid_at_commit = state->progress.consumed_valid_samples;
  return state;
}

}  // namespace muster
