#include "worker/train/restore.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status.h"
#include "common/recovery/state_pieces.h"
#include "common/schedule/from_spec.h"
#include "common/spec/spec_json.h"
#include "worker/checkpoint/exchange.h"
#include "worker/comm/gloo_communicator.h"
#include "worker/snapshot/state_transfer.h"
#include "worker/train/checkpointing.h"
#include "worker/train/live_state.h"
#include "worker/train/member_offer.h"
#include "worker/train/train_step.h"

namespace muster {
namespace {

using Source = RestoreDecision::Source;

// Works of the old epoch that may still write into gradient and parameter buffers: some 40 ms are
// usual where groups span nodes, and there are none where they share memory.
constexpr absl::Duration kLingeringLimit = absl::Seconds(2);

absl::Status WaitForOldWorks() {
  for (absl::Duration waited; NumLingeringGlooGroups() > 0; waited += absl::Milliseconds(1)) {
    if (waited > kLingeringLimit) {
      return absl::FailedPreconditionError(
          absl::StrCat("operations of the last epoch have not ended within ",
                       absl::FormatDuration(kLingeringLimit),
                       ": this process cannot go on with its buffers and must be started anew"));
    }
    absl::SleepFor(absl::Milliseconds(1));
  }
  return absl::OkStatus();
}

bool IsTorn(const JobState& state) {
  return state.open_step.has_value() && state.open_step->committing;
}

class Restore {
 public:
  explicit Restore(const RestoreOptions& options)
      : options_(options),
        kept_(options.kept),
        members_(*options.members),
        me_(members_.rank()),
        num_ranks_(static_cast<int>(options.spec.resources.world_size)),
        spec_json_(JobSpecToJson(options.spec)) {}

  absl::StatusOr<Restored> Run() {
    while (true) {
      RETURN_IF_ERROR(Exchange());
      ASSIGN_OR_RETURN(out_.decision, DecideRestore(Offers()));
      ASSIGN_OR_RETURN(const bool whole, ReadWhatIsGiven());
      if (whole) break;
    }
    if (members_.size() == num_ranks_) {
      out_.world = options_.members;
    } else {
      std::vector<int> ranks(num_ranks_);
      for (int rank = 0; rank < num_ranks_; ++rank) ranks[rank] = rank;
      ASSIGN_OR_RETURN(out_.world, members_.Split("world", ranks));
    }
    const Source source = out_.decision.source;
    if (source == Source::kLive || source == Source::kSnapshot) {
      RETURN_IF_ERROR(FromMemory());
    } else if (out_.world != nullptr) {
      // Not from the beginning while there may be something in the folder.
      if (source == Source::kBeginning) RETURN_IF_ERROR(unreadable_);
      RETURN_IF_ERROR(FromFiles());
    }
    if (out_.world != nullptr) RETURN_IF_ERROR(AttachSnapshots());
    // Helpers leave only when nobody needs them any more.
    if (members_.size() > num_ranks_) RETURN_IF_ERROR(members_.Barrier()->Wait());
    return std::move(out_);
  }

 private:
  bool is_helper() const { return me_ >= num_ranks_; }

  absl::Status Exchange() {
    ASSIGN_OR_RETURN(const RankTopology topology, RankTopology::Create(TopologyOf(options_.spec)));
    MemberText mine;
    pieces_ = PiecesOf(options_.spec, topology);
    if (!is_helper()) {
      mine.offer.layout = pieces_.layout;
      mine.offer.needs = pieces_.of_rank[me_];
    }
    if (kept_.state != nullptr && (kept_.state->optimizer == nullptr || IsTorn(*kept_.state)))
      kept_.state.reset();
    if (kept_.state != nullptr) RETURN_IF_ERROR(AddLive(mine));
    if (kept_.snapshotter != nullptr) {
      kept_.snapshotter->Detach();
      if (!options_.spec.training.skip_train) snapshots_ = kept_.snapshotter->List(me_);
      for (const HeldSnapshot& held : snapshots_) mine.offer.held.push_back(held.state);
    }
    if (me_ == 0) {
      const absl::StatusOr<int64_t> newest = NewestSaved(options_.spec, options_.ledger_through);
      mine.offer.checkpoint = newest.value_or(-1);
      unreadable_ = newest.status();
    }
    ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                     ExchangeTexts(EncodeMember(mine), options_.device, members_));
    all_.clear();
    for (const std::string& text : texts) {
      ASSIGN_OR_RETURN(MemberText member, DecodeMember(text));
      all_.push_back(std::move(member));
    }
    return absl::OkStatus();
  }

  // Whether a snapshot is damaged is seen only when it is read. False, on all members: one was, and
  // is offered no more.
  absl::StatusOr<bool> ReadWhatIsGiven() {
    contents_.clear();
    if (out_.decision.source != Source::kSnapshot) return true;  // nobody needs any
    const auto read = [&]() -> absl::StatusOr<std::string> {
      for (const int index : out_.decision.members[me_].gives) {
        if (index == 0 && HasLive(me_)) continue;
        const size_t place = static_cast<size_t>(index) - (HasLive(me_) ? 1 : 0);
        absl::StatusOr<SnapshotContents> contents = kept_.snapshotter->Read(snapshots_[place].slot);
        if (absl::IsDataLoss(contents.status())) return "damaged";
        RETURN_IF_ERROR(contents.status());
        contents_[index] = *std::move(contents);
      }
      return std::string();
    };
    ASSIGN_OR_RETURN(const std::vector<std::string> outcomes,
                     ExchangeOutcomes(read(), options_.device, members_));
    return std::all_of(outcomes.begin(), outcomes.end(),
                       [](const std::string& outcome) { return outcome.empty(); });
  }

  absl::Status AddLive(MemberText& mine) const {
    const JobState& state = *kept_.state;
    ASSIGN_OR_RETURN(const RankTopology topology, RankTopology::Create(TopologyOf(state.spec)));
    const StatePieces pieces = PiecesOf(state.spec, topology);
    mine.offer.held.push_back({.kind = HeldState::Kind::kLive,
                               .iteration = state.progress.iteration,
                               .epoch = state.committed_epoch,
                               .layout = pieces.layout,
                               .pieces = pieces.of_rank[state.parallel.rank()],
                               .num_pieces = pieces.num_pieces});
    mine.offer.prepared = state.open_step.has_value() && state.open_step->prepared;
    mine.offer.prepared_epoch = mine.offer.prepared ? state.epoch : 0;
    if (state.agreed.iteration > 0) {
      mine.offer.agreed = state.agreed.vector;
      mine.offer.agreed_iteration = state.agreed.iteration;
      mine.offer.agreed_epoch = state.agreed.epoch;
    }
    mine.rebinds = !is_helper() && state.parallel.rank() == me_ &&
                   state.device == options_.device && kept_.spec_json == spec_json_;
    mine.reported = kept_.reports;
    mine.boundary_done = kept_.boundary_done;
    mine.applied_through = kept_.directives.applied_through();
    const bool knows_step = state.last_step.has_value() &&
                            state.agreed.iteration == state.progress.iteration &&
                            state.committed_epoch == state.agreed.epoch;
    if (knows_step) mine.step = state.last_step;
    if (mine.offer.prepared) {
      mine.prepared_step = state.open_step->result;
      mine.prepared_step->grad_norm = state.open_step->optimizer.grad_norm;
      mine.prepared_step->num_zeros = state.open_step->optimizer.num_zeros;
    }
    DirectiveLog log = kept_.directives;
    mine.held = log.Apply(log.gap_free_through());
    return absl::OkStatus();
  }

  std::vector<MemberOffer> Offers() const {
    std::vector<MemberOffer> offers;
    for (const MemberText& member : all_) offers.push_back(member.offer);
    return offers;
  }

  bool HasLive(int member) const {
    const std::vector<HeldState>& held = all_[member].offer.held;
    return !held.empty() && held[0].kind == HeldState::Kind::kLive;
  }
  // Its live state is what the job goes on with.
  bool UsesLive(int member) const {
    if (!HasLive(member)) return false;
    const RestoreDecision::Member& decided = out_.decision.members[member];
    return decided.keeps == 0 || std::count(decided.gives.begin(), decided.gives.end(), 0) > 0;
  }
  // It goes on with the objects that it has.
  bool Rebinds(int member) const {
    return member < num_ranks_ && HasLive(member) && all_[member].rebinds &&
           out_.decision.members[member].keeps == 0;
  }

  // The prepared step of a member that finishes it now.
  std::optional<TrainStepResult> FinishedStep(const MemberText& member) const {
    std::optional<TrainStepResult> step = member.prepared_step;
    if (!step.has_value()) return step;
    step->decision = FromReduced(*out_.decision.finish_with);
    step->skipped = step->decision.found_inf || step->decision.norm_too_large;
    if (step->decision.found_inf) {
      step->grad_norm.reset();
      step->num_zeros.reset();
    }
    for (const Directive& directive : member.held) {
      if (directive.number <= step->decision.apply_directives_through)
        step->directives.push_back(directive);
    }
    return step;
  }

  // What all ranks hold the same of the step that they go on from; computed by all alike.
  void DecideBoundary() {
    const RestoreDecision& decision = out_.decision;
    through_ = options_.directives_through;
    bool live = false, done = true, reporter_lives = false;
    for (size_t m = 0; m < all_.size(); ++m) {
      if (!UsesLive(static_cast<int>(m))) continue;
      const MemberText& member = all_[m];
      live = true;
      done = done && member.boundary_done >= decision.iteration;
      reporter_lives = reporter_lives || member.reported;
      through_ = std::max(through_, member.applied_through);
      std::optional<TrainStepResult> step =
          decision.members[m].finishes ? FinishedStep(member) : member.step;
      // Losses are on the last stage only.
      if (step.has_value() && (!step_.has_value() || step_->losses.empty())) {
        if (step_.has_value() && step->directives.empty()) step->directives = step_->directives;
        step_ = std::move(step);
      }
    }
    if (step_.has_value()) through_ = std::max(through_, step_->decision.apply_directives_through);
    out_.redo_boundary = live && step_.has_value() && !(done && reporter_lives);
    boundary_is_done_ = !live || (done && reporter_lives);
    out_.report_again = decision.iteration > options_.ledger_through;
  }

  // The step in which this member is behind, then what holds on all of them.
  void FinishStep() {
    const RestoreDecision& decision = out_.decision;
    if (kept_.state == nullptr) return;
    JobState& state = *kept_.state;
    if (decision.members[me_].finishes) {
      CommitOpenStep(state, *decision.finish_with);
      if (step_.has_value()) state.last_step->directives = step_->directives;
    } else {
      DropOpenStep(state);
    }
    if (!UsesLive(me_)) return;
    NoteStep(state);
    // What comes after the boundary may have been evaluated here and not elsewhere.
    state.progress.consumed_valid_samples =
        boundary_is_done_ ? kept_.consumed_valid_then : state.consumed_valid_at_commit;
  }

  // What is known of the step that all go on from.
  void NoteStep(JobState& state) const {
    const RestoreDecision& decision = out_.decision;
    const bool knows = state.last_step.has_value() &&
                       state.agreed.iteration == decision.iteration &&
                       state.agreed.epoch == decision.epoch;
    if (!knows && (step_.has_value() || &state == kept_.state.get())) state.last_step = step_;
    for (const MemberText& member : all_) {
      const MemberOffer& offer = member.offer;
      if (!offer.agreed.has_value() || offer.agreed_iteration != decision.iteration ||
          offer.agreed_epoch != decision.epoch) {
        continue;
      }
      state.agreed = {
          .vector = *offer.agreed, .iteration = decision.iteration, .epoch = decision.epoch};
    }
  }

  absl::Status FromMemory() {
    DecideBoundary();
    FinishStep();
    const RestoreDecision::Member& mine = out_.decision.members[me_];
    bool all_rebind = true;
    for (int member = 0; member < num_ranks_; ++member) all_rebind = all_rebind && Rebinds(member);

    std::unique_ptr<JobState> filled;  // not kept until it is complete
    if (Rebinds(me_)) {
      RETURN_IF_ERROR(Rebind(*kept_.state, all_rebind));
    } else if (!is_helper() && kept_.state != nullptr && all_[me_].rebinds) {
      filled = std::move(kept_.state);
      RETURN_IF_ERROR(Rebind(*filled, /*all_rebind=*/false));
    } else if (!is_helper()) {
      ASSIGN_OR_RETURN(filled, BuildJobStateToFill(options_.spec, options_.providers, out_.world,
                                                   options_.device));
    }
    if (!all_rebind) {
      TransferRequest request{.device = options_.device};
      for (const int index : mine.gives) RETURN_IF_ERROR(Give(index, request));
      if (filled != nullptr) Want(*filled, request);
      ASSIGN_OR_RETURN(const TransferResult moved, TransferState(request, members_));
      out_.bytes_moved = moved.bytes_moved;
      if (filled != nullptr) RETURN_IF_ERROR(FinishFill(*filled, moved.texts));
    }
    if (filled != nullptr) TakeOver(std::move(filled));
    if (is_helper()) return absl::OkStatus();
    kept_.directives = DirectiveLog(through_);
    kept_.boundary_done = boundary_is_done_ ? out_.decision.iteration : -1;
    kept_.consumed_valid_then = kept_.state->progress.consumed_valid_samples;
    RETURN_IF_ERROR(options_.prepare(*kept_.state));
    return Gather();
  }

  absl::Status Rebind(JobState& state, bool all_rebind) {
    RETURN_IF_ERROR(WaitForOldWorks());
    if (!all_rebind) RETURN_IF_ERROR(JoinBuild(state, *out_.world));
    state.ddp->ForgetUnfinished();
    for (const auto& chunk : state.chunks) chunk->SetTraining(true);
    return state.parallel.Rebind(out_.world);
  }

  absl::Status Give(int index, TransferRequest& request) {
    if (index == 0 && HasLive(me_)) {
      for (NamedTensor& tensor : LiveTensors(*kept_.state))
        request.gives.push_back(std::move(tensor));
      request.gives_texts.merge(LiveTexts(*kept_.state));
      return absl::OkStatus();
    }
    const auto snapshot = contents_.find(index);
    if (snapshot == contents_.end()) return absl::OkStatus();  // nobody needs it
    SnapshotContents& contents = snapshot->second;
    for (NamedTensor& tensor : contents.tensors) request.gives.push_back(std::move(tensor));
    request.gives_texts.merge(std::move(contents.texts));
    return absl::OkStatus();
  }

  void Want(const JobState& built, TransferRequest& request) const {
    request.wants = LiveTensors(built);
    request.wants_texts.push_back(kCommonText);
    // Of another layout there may be none: then those of training.seed are as good as any.
    if (out_.decision.layout == all_[me_].offer.layout)
      request.wants_texts.insert(request.wants_texts.end(),
                                 {RngTextKey(built), StepTextKey(built)});
  }

  void TakeOver(std::unique_ptr<JobState> filled) {
    filled->committed_epoch = out_.decision.epoch;
    NoteStep(*filled);
    if (kept_.state != nullptr) filled->rerun = kept_.state->rerun;
    kept_.state = std::move(filled);
    kept_.spec_json = spec_json_;
  }

  absl::Status AttachSnapshots() {
    JobState& state = *kept_.state;
    state.snapshots = nullptr;
    if (kept_.snapshotter == nullptr || state.optimizer == nullptr) return absl::OkStatus();
    RETURN_IF_ERROR(kept_.snapshotter->Attach({.rank = me_,
                                               .layout = pieces_.layout,
                                               .pieces = pieces_.of_rank[me_],
                                               .num_pieces = pieces_.num_pieces,
                                               .buddy = options_.buddy,
                                               .device = options_.device,
                                               .number = options_.epoch},
                                              out_.decision.iteration, out_.decision.snapshots,
                                              *out_.world, out_.decision.safe_snapshots));
    state.snapshots = kept_.snapshotter.get();
    return absl::OkStatus();
  }

  absl::Status Gather() {
    JobState& state = *kept_.state;
    if (!state.ddp->shards_hold_parameters())
      RETURN_IF_ERROR(Annotate(state.ddp->SyncParams(), "gathering parameters"));
    return Annotate(state.optimizer->GatherUpdatedParams(), "gathering parameters");
  }

  absl::Status FromFiles() {
    const auto phase = [&](const char* name) {
      options_.host.Send(PhaseMessage{.epoch = options_.epoch, .phase = name, .detail = ""});
    };
    kept_.state.reset();
    phase("building");
    ASSIGN_OR_RETURN(std::unique_ptr<JobState> built,
                     BuildJobState(options_.spec, options_.providers, out_.world, options_.device));
    RETURN_IF_ERROR(options_.prepare(*built));
    phase("loading");
    const auto event = [&](std::string text) {
      if (me_ != 0) return;
      options_.host.Send(
          EventMessage{.epoch = options_.epoch, .kind = "loaded", .text = std::move(text)});
    };
    std::optional<LoadedJob> loaded;
    if (out_.decision.source == Source::kCheckpoint) {
      ASSIGN_OR_RETURN(loaded, LoadSaved(*built, out_.decision.iteration));
    } else {
      ASSIGN_OR_RETURN(loaded, LoadJob(*built));
    }
    kept_.state = std::move(built);
    kept_.spec_json = spec_json_;
    JobState& state = *kept_.state;
    if (loaded.has_value()) {
      event(absl::StrCat("loaded ", loaded->path, loaded->weights_only ? " (weights only)" : "",
                         ": the run begins at iteration ", state.progress.iteration));
      for (const std::string& note : loaded->notes) event(note);
    } else if (options_.spec.checkpoint.load.has_value()) {
      event(absl::StrCat("checkpoint.load=", *options_.spec.checkpoint.load,
                         " holds no checkpoint: the run begins at iteration 0"));
    }
    out_.decision.iteration = state.progress.iteration;
    state.consumed_valid_at_commit = state.progress.consumed_valid_samples;
    kept_.directives = DirectiveLog(options_.directives_through);
    kept_.boundary_done = -1;
    return absl::OkStatus();
  }

  const RestoreOptions& options_;
  AttemptState& kept_;
  Communicator& members_;
  const int me_, num_ranks_;
  const std::string spec_json_;
  StatePieces pieces_;  // of this epoch's layout
  std::vector<HeldSnapshot> snapshots_;
  std::map<int, SnapshotContents> contents_;  // of what this member gives, by index in `held`
  std::vector<MemberText> all_;
  Restored out_;
  absl::Status unreadable_;  // why this rank cannot say what was saved
  bool boundary_is_done_ = true;
  // Of the iteration that all go on from.
  int64_t through_ = 0;                  // directives that were applied
  std::optional<TrainStepResult> step_;  // from whoever knows it
};

}  // namespace

absl::StatusOr<Restored> RestoreJob(const RestoreOptions& options) {
  return Restore(options).Run();
}

}  // namespace muster
