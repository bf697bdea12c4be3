#include "worker/train/step_trace.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/status.h"
#include "common/runtime/log.h"
#include "common/topology/rank_topology.h"
#include "worker/train/trace_clock.h"

namespace muster {
namespace {

// Of one piece on its way to the coordinator, which may be started again meanwhile.
constexpr absl::Duration kPieceLimit = absl::Seconds(60);

}  // namespace

class StepTrace::LayerHooks final : public UnitHooks {
 public:
  LayerHooks(TraceRecorder* recorder, size_t num_units)
      : recorder_(recorder), forward_(num_units, -1), backward_(num_units, -1) {}

  void BeforeForward(int unit) override {
    Begin(TraceKind::kLayerForward, "layer forward", unit, &forward_);
  }
  void AfterForward(int unit) override { End(unit, &forward_); }
  void BeforeBackward(int unit) override {
    Begin(TraceKind::kLayerBackward, "layer backward", unit, &backward_);
  }
  void AfterBackward(int unit) override { End(unit, &backward_); }

 private:
  void Begin(TraceKind kind, const char* name, int unit, std::vector<int64_t>* open) {
    if (unit >= 0 && unit < static_cast<int>(open->size()))
      (*open)[unit] = recorder_->Begin(kind, name, unit);
  }
  void End(int unit, std::vector<int64_t>* open) {
    if (unit >= 0 && unit < static_cast<int>(open->size()))
      recorder_->End(std::exchange((*open)[unit], -1));
  }

  TraceRecorder* const recorder_;
  std::vector<int64_t> forward_, backward_;  // by unit: the event that has begun
};

StepTrace::StepTrace(Options options) : options_(options) {}

StepTrace::~StepTrace() {
  if (recorder_ != nullptr) Listen(nullptr);
  give_up_ = true;
  AwaitUpload();
}

void StepTrace::AwaitUpload() {
  if (upload_.joinable()) upload_.join();
}

void StepTrace::Listen(TraceRecorder* recorder) {
  JobState& state = options_.state;
  state.trace = recorder;
  options_.timers.set_trace(recorder);
  for (Communicator* group : state.parallel.All()) group->Observe(recorder);
  if (recorder == nullptr) {
    for (size_t i = 0; i < hooks_.size(); ++i) state.chunks[i]->RemoveUnitHooks(hooks_[i].get());
    hooks_.clear();
    return;
  }
  for (size_t i = 0; i < state.chunks.size(); ++i) {
    hooks_.push_back(std::make_unique<LayerHooks>(recorder, state.layers[i].layers.size()));
    state.chunks[i]->AddUnitHooks(hooks_.back().get());
  }
}

absl::Status StepTrace::Begin(const Directive& directive) {
  RETURN_IF_ERROR(EndEarly());
  const JobState& state = options_.state;
  ASSIGN_OR_RETURN(const ClockSync clock,
                   SyncClocks(state.parallel.world(), state.device, ClockName(), SteadyNanos));
  directive_ = directive;
  first_clock_ = clock.estimate;
  head_ = {.rank = state.parallel.world().rank(),
           .world_size = state.parallel.world().size(),
           .coordinates = state.parallel.coordinates(),
           .device = state.device.str(),
           .directive = directive.number,
           .requested = directive.iterations.value_or(1),
           .shared_clock = clock.shared,
           .num_clocks = clock.num_clocks,
           .origin_ns = clock.reference_now_ns};
  for (const ChunkLayers& chunk : state.layers) head_.layers.push_back(chunk.layers);
  for (Communicator* group : state.parallel.All()) {
    if (group->size() > 1) head_.groups[group->name()] = group->ranks();
  }
  recorder_ = std::make_shared<TraceRecorder>(options_.capacity);
  Listen(recorder_.get());
  MUSTER_LOG(kInfo) << "tracing the next " << head_.requested << " iterations, as directive "
                    << directive.number << " asks";
  return absl::OkStatus();
}

void StepTrace::BeginStep(int64_t iteration) {
  if (recorder_ == nullptr) return;
  if (head_.iterations == 0) head_.first_iteration = iteration;
  recorder_->SetIteration(iteration);
  step_place_ = recorder_->Begin(TraceKind::kIteration, "iteration");
}

absl::Status StepTrace::EndStep() {
  if (recorder_ == nullptr) return absl::OkStatus();
  recorder_->End(step_place_);
  ++head_.iterations;
  return head_.iterations < head_.requested ? absl::OkStatus() : End();
}

absl::Status StepTrace::EndEarly() { return recorder_ == nullptr ? absl::OkStatus() : End(); }

absl::Status StepTrace::End() {
  Listen(nullptr);
  const std::shared_ptr<TraceRecorder> recorder = std::exchange(recorder_, nullptr);
  const JobState& state = options_.state;
  ASSIGN_OR_RETURN(const ClockSync clock,
                   SyncClocks(state.parallel.world(), state.device, ClockName(), SteadyNanos));
  head_.clock = ClockMap(first_clock_, clock.estimate);
  AwaitUpload();  // of the trace before
  upload_ = std::thread([this, recorder, head = head_] { Send(head.directive, head, recorder); });
  return absl::OkStatus();
}

void StepTrace::Send(int64_t directive, const TraceHead& head,
                     std::shared_ptr<const TraceRecorder> recorder) {
  const std::string lines = TraceLines(head, recorder->Take());
  recorder.reset();
  size_t sent = 0;
  do {
    TracePieceMessage piece{.epoch = options_.epoch,
                            .directive = directive,
                            .offset = static_cast<int64_t>(sent),
                            .data = lines.substr(sent, kMaxTracePiece),
                            .limit_ms = absl::ToInt64Milliseconds(kPieceLimit)};
    sent += piece.data.size();
    piece.last = sent == lines.size();
    if (absl::Status status = options_.host.SendTracePiece(std::move(piece), kPieceLimit);
        !status.ok()) {
      MUSTER_LOG(kError) << "the trace could not be delivered: " << status.message();
      return;
    }
  } while (sent < lines.size() && !give_up_);
  if (sent < lines.size()) return;
  MUSTER_LOG(kInfo) << "delivered a trace of " << head.iterations << " iterations, " << lines.size()
                    << " bytes";
}

}  // namespace muster
