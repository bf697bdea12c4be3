#include "worker/train/live_offer.h"

#include "common/base/status.h"
#include "common/recovery/state_pieces.h"
#include "common/schedule/from_spec.h"

namespace muster {

absl::Status OfferLive(const AttemptState& kept, const MemberPlace& place, MemberText& mine) {
  const JobState& state = *kept.state;
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
  mine.rebinds = state.parallel.rank() == place.rank && state.device == place.device &&
                 kept.spec_json == place.spec_json;
  mine.reported = kept.reports;
  mine.boundary_done = kept.boundary_done;
  mine.applied_through = kept.directives.applied_through();
  const bool knows_step = state.last_step.has_value() &&
                          state.agreed.iteration == state.progress.iteration &&
                          state.committed_epoch == state.agreed.epoch;
  if (knows_step) mine.step = state.last_step;
  if (mine.offer.prepared) {
    mine.prepared_step = state.open_step->result;
    mine.prepared_step->grad_norm = state.open_step->optimizer.grad_norm;
    mine.prepared_step->num_zeros = state.open_step->optimizer.num_zeros;
  }
  DirectiveLog log = kept.directives;
  mine.held = log.Apply(log.gap_free_through());
  return absl::OkStatus();
}

}  // namespace muster
