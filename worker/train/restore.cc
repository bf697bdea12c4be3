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
#include "worker/model/parameter_init.h"
#include "worker/snapshot/state_transfer.h"
#include "worker/train/checkpointing.h"
#include "worker/train/live_offer.h"
#include "worker/train/live_state.h"
#include "worker/train/restore_boundary.h"
#include "worker/train/restore_files.h"
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
    if (kept_.state != nullptr) {
      RETURN_IF_ERROR(OfferLive(
          kept_,
          {.rank = is_helper() ? -1 : me_, .spec_json = spec_json_, .device = options_.device},
          mine));
    }
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

  std::vector<MemberOffer> Offers() const {
    std::vector<MemberOffer> offers;
    for (const MemberText& member : all_) offers.push_back(member.offer);
    return offers;
  }

  bool HasLive(int member) const { return muster::HasLive(all_[member]); }
  // It goes on with the objects that it has.
  bool Rebinds(int member) const {
    return member < num_ranks_ && HasLive(member) && all_[member].rebinds &&
           out_.decision.members[member].keeps == 0;
  }

  // The step in which this member is behind, then what holds on all of them.
  void FinishStep() {
    const RestoreDecision& decision = out_.decision;
    if (kept_.state == nullptr) return;
    JobState& state = *kept_.state;
    if (decision.members[me_].finishes) {
      CommitOpenStep(state, *decision.finish_with);
      if (boundary_.step.has_value()) state.last_step->directives = boundary_.step->directives;
    } else {
      DropOpenStep(state);
    }
    if (!UsesLive(all_[me_], decision.members[me_])) return;
    NoteStep(state);
    // What comes after the boundary may have been evaluated here and not elsewhere.
    state.progress.consumed_valid_samples =
        boundary_.done ? kept_.consumed_valid_then : state.consumed_valid_at_commit;
  }

  // What is known of the step that all go on from.
  void NoteStep(JobState& state) const {
    const RestoreDecision& decision = out_.decision;
    const bool knows = state.last_step.has_value() &&
                       state.agreed.iteration == decision.iteration &&
                       state.agreed.epoch == decision.epoch;
    if (!knows && (boundary_.step.has_value() || &state == kept_.state.get()))
      state.last_step = boundary_.step;
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
    boundary_ = BoundaryOf(all_, out_.decision, options_.directives_through);
    out_.redo_boundary = boundary_.redo;
    out_.report_again = out_.decision.iteration > options_.ledger_through;
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
      ASSIGN_OR_RETURN(filled, BuildToFill());
    }
    if (!all_rebind) {
      TransferRequest request{.device = options_.device};
      for (const int index : mine.gives) RETURN_IF_ERROR(Give(index, request));
      if (filled != nullptr) Want(*filled, request);
      ASSIGN_OR_RETURN(const TransferResult moved, TransferState(request, members_));
      out_.bytes_moved = moved.bytes_moved;
      if (filled != nullptr) {
        RETURN_IF_ERROR(FinishFill(*filled, moved.texts));
        // A snapshot was taken after the boundary's evaluation, which all do again.
        if (!boundary_.done)
          filled->progress.consumed_valid_samples = filled->consumed_valid_at_commit;
        NoteLargeValues(*filled, moved.texts);
      }
    }
    if (filled != nullptr) TakeOver(std::move(filled));
    if (is_helper()) return absl::OkStatus();
    kept_.directives = DirectiveLog(boundary_.directives_through);
    kept_.boundary_done = boundary_.done ? out_.decision.iteration : -1;
    kept_.consumed_valid_then = kept_.state->progress.consumed_valid_samples;
    RETURN_IF_ERROR(options_.prepare(*kept_.state));
    return Gather();
  }

  absl::StatusOr<std::unique_ptr<JobState>> BuildToFill() {
    // Of another layout the givers may have fewer rows of a padded vocabulary, and no random
    // states.
    std::optional<WithoutParameterInit> all_is_given;
    if (out_.decision.layout == all_[me_].offer.layout) all_is_given.emplace();
    return BuildJobStateToFill(options_.spec, options_.providers, out_.world, options_.device);
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
    request.wants_texts.insert(request.wants_texts.end(), {kCommonText, kValidAtCommitText});
    // Of another layout there may be none: then those of training.seed are as good as any.
    if (out_.decision.layout == all_[me_].offer.layout)
      request.wants_texts.insert(request.wants_texts.end(), {RngTextKey(built), StepTextKey(built),
                                                             RecentStepsTextKey(built)});
    for (int dp = 0; dp < built.parallel.Group("dp").size(); ++dp)
      request.likes_texts.push_back(LargeValuesTextKey(built, dp));
  }

  // What this rank has seen so far; of its peers, where nobody has that any more.
  void NoteLargeValues(const JobState& filled, const std::map<std::string, std::string>& texts) {
    kept_.large_values.clear();
    const int dp = filled.parallel.coordinates().dp;
    if (const auto own = texts.find(LargeValuesTextKey(filled, dp)); own != texts.end()) {
      kept_.large_values = {own->second};
      return;
    }
    if (HasLive(me_) && all_[me_].rebinds) return;  // its own machine has them
    for (int peer = 0; peer < filled.parallel.Group("dp").size(); ++peer) {
      const auto text = texts.find(LargeValuesTextKey(filled, peer));
      if (text != texts.end()) kept_.large_values.push_back(text->second);
    }
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
    kept_.state.reset();
    FileRestore files{.spec = options_.spec,
                      .world = out_.world,
                      .host = options_.host,
                      .providers = options_.providers,
                      .epoch = options_.epoch,
                      .device = options_.device,
                      .prepare = options_.prepare};
    if (out_.decision.source == Source::kCheckpoint) files.saved = out_.decision.iteration;
    ASSIGN_OR_RETURN(kept_.state, RestoreFromFiles(files));
    kept_.spec_json = spec_json_;
    out_.decision.iteration = kept_.state->progress.iteration;
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
  absl::Status unreadable_;    // why this rank cannot say what was saved
  RestoredBoundary boundary_;  // with a state from memory
};

}  // namespace

absl::StatusOr<Restored> RestoreJob(const RestoreOptions& options) {
  return Restore(options).Run();
}

}  // namespace muster
