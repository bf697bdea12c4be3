#include "worker/train/job_saver.h"

#include <algorithm>
#include <utility>

#include "absl/time/time.h"
#include "common/base/status.h"
#include "common/control/messages.h"
#include "common/runtime/log.h"
#include "worker/train/checkpointing.h"

namespace muster {
namespace {

constexpr int kFinalSaveTries = 3;
constexpr int64_t kMaxRetryGap = 64;  // iterations

// A group that failed or was aborted cannot carry another save; a disk that is full can be tried
// again.
bool WorldIsDead(const absl::Status& status) {
  return absl::IsAborted(status) || absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
}

}  // namespace

absl::Status JobSaver::Save(const std::string& reason) {
  const absl::Status saved = SaveOnce(reason);
  if (saved.ok()) {
    retry_at_.reset();
    retry_gap_ = 1;
    return saved;
  }
  retry_at_ = state_.progress.iteration + retry_gap_;
  retry_gap_ = std::min(retry_gap_ * 2, kMaxRetryGap);
  return WorldIsDead(saved) ? saved : absl::OkStatus();
}

bool JobSaver::RetryIsDue() const {
  return retry_at_.has_value() && state_.progress.iteration >= *retry_at_;
}

absl::StatusOr<std::optional<std::string>> JobSaver::SaveForGood(const std::string& reason) {
  absl::Status saved;
  for (int i = 0; i < kFinalSaveTries; ++i) {
    saved = SaveOnce(reason);
    if (saved.ok()) return std::optional<std::string>();
    if (WorldIsDead(saved)) return saved;
  }
  return std::optional<std::string>(std::string(saved.message()));
}

absl::Status JobSaver::SaveOnce(const std::string& reason) {
  const absl::Duration start = clock_.Steady();
  if (state_.ddp != nullptr && state_.ddp->forward_pre_hook_enabled())
    RETURN_IF_ERROR(Annotate(state_.ddp->SyncParams(), "gathering parameters to save them"));
  absl::StatusOr<SavedCheckpoint> saved = SaveJob(state_, epoch_);
  if (state_.parallel.world().rank() != 0) return saved.status();
  CheckpointMessage message{.epoch = epoch_,
                            .iteration = state_.progress.iteration,
                            .ok = saved.ok(),
                            .elapsed_ms = absl::ToDoubleMilliseconds(clock_.Steady() - start)};
  if (saved.ok()) {
    message.path = saved->path;
    MUSTER_LOG(kInfo) << "saved " << saved->path << " in " << message.elapsed_ms << " ms ("
                      << reason << ")";
    for (const std::string& note : saved->notes)
      host_.Send(EventMessage{.epoch = epoch_, .kind = "checkpoint", .text = note});
  } else {
    message.path = *state_.spec.checkpoint.save;
    message.error = std::string(saved.status().message());
    MUSTER_LOG(kError) << "save failed: " << message.error;
  }
  host_.Send(std::move(message));
  return saved.status();
}

}  // namespace muster
