#include "worker/parallel/fsdp.h"

#include <cmath>
#include <utility>

#include <ATen/ops/stack.h>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "worker/parallel/grad_hooks.h"

namespace muster {
namespace {

// Units whose gradients are on their way while the next one's are being made.
constexpr int kReductionsBehind = 1;

// Inside a pass a Status cannot travel.
void ThrowUnlessOk(absl::Status status) {
  if (!status.ok()) throw CollectiveError(std::move(status));
}

}  // namespace

void FullyShardedDataParallel::ChunkHooks::BeforeForward(int unit) {
  ThrowUnlessOk(owner_.BeforeForward(chunk_, unit));
}
void FullyShardedDataParallel::ChunkHooks::AfterForward(int unit) {
  ThrowUnlessOk(owner_.AfterForward(chunk_, unit));
}
void FullyShardedDataParallel::ChunkHooks::BeforeBackward(int unit) {
  ThrowUnlessOk(owner_.BeforeBackward(chunk_, unit));
}
void FullyShardedDataParallel::ChunkHooks::AfterBackward(int unit) {
  ThrowUnlessOk(owner_.AfterBackward(chunk_, unit));
}

FullyShardedDataParallel::~FullyShardedDataParallel() {
  for (const auto& chunk : chunks_) {
    for (const ParameterPtr& p : chunk->params) {
      RemoveGradHook(*p);
      p->sink = nullptr;
      p->gatherer = nullptr;
    }
  }
}

std::vector<FullyShardedDataParallel::Unit*> FullyShardedDataParallel::Chunk::all() const {
  std::vector<Unit*> all;
  for (const auto& unit : roots) all.push_back(unit.get());
  for (const auto& unit : units) all.push_back(unit.get());
  return all;
}

UnitHooks* FullyShardedDataParallel::unit_hooks(int chunk) { return chunks_[chunk]->hooks.get(); }

absl::Status FullyShardedDataParallel::StartGather(Unit& unit) {
  for (const auto& piece : unit.pieces) RETURN_IF_ERROR(piece->StartGather());
  return absl::OkStatus();
}

absl::Status FullyShardedDataParallel::FinishGather(Unit& unit) {
  for (const auto& piece : unit.pieces) RETURN_IF_ERROR(piece->FinishGather());
  return absl::OkStatus();
}

absl::Status FullyShardedDataParallel::Release(Unit& unit) {
  for (const auto& piece : unit.pieces) RETURN_IF_ERROR(piece->Release());
  return absl::OkStatus();
}

absl::Status FullyShardedDataParallel::BeforeForward(Chunk& chunk, int unit) {
  chunk.at_start = false;
  RETURN_IF_ERROR(StartGather(*chunk.units[unit]));
  // The next one travels while this one computes. A recomputation ends at the unit whose backward
  // pass it is for.
  const int end =
      chunk.in_backward >= 0 ? chunk.in_backward + 1 : static_cast<int>(chunk.units.size());
  if (unit + 1 < end) RETURN_IF_ERROR(StartGather(*chunk.units[unit + 1]));
  return FinishGather(*chunk.units[unit]);
}

absl::Status FullyShardedDataParallel::AfterForward(Chunk& chunk, int unit) {
  const bool is_recomputation = chunk.in_backward >= 0;
  if (is_recomputation || !options_.reshard_after_forward) return absl::OkStatus();
  return Release(*chunk.units[unit]);
}

absl::Status FullyShardedDataParallel::BeforeBackward(Chunk& chunk, int unit) {
  chunk.in_backward = unit;
  RETURN_IF_ERROR(StartGather(*chunk.units[unit]));
  if (unit > 0) RETURN_IF_ERROR(StartGather(*chunk.units[unit - 1]));
  return FinishGather(*chunk.units[unit]);
}

absl::Status FullyShardedDataParallel::AfterBackward(Chunk& chunk, int unit) {
  chunk.in_backward = -1;
  RETURN_IF_ERROR(Release(*chunk.units[unit]));
  return Reduce(*chunk.units[unit]);
}

void FullyShardedDataParallel::ParamNeeded(Parameter& parameter) {
  Unit& unit = *place_of_.at(&parameter).unit;
  if (unit.number >= 0) {
    for (const auto& piece : unit.pieces)
      MUSTER_CHECK_MSG(piece->is_whole(),
                       absl::StrCat(parameter.name, " is read outside of its unit"));
    return;
  }
  ThrowUnlessOk(StartGather(unit));
  if (unit.chunk->at_start && !unit.chunk->units.empty())
    ThrowUnlessOk(StartGather(*unit.chunk->units[0]));
  ThrowUnlessOk(FinishGather(unit));
}

void FullyShardedDataParallel::GradComing(Parameter& parameter) {
  const Place& place = place_of_.at(&parameter);
  if (place.piece->grads_are_open()) return;
  ThrowUnlessOk(OpenGrads(place));
}

absl::Status FullyShardedDataParallel::OpenGrads(const Place& place) {
  const auto too_many = [this] {
    int units = 0;
    for (const Unit* unit : reducing_) units += unit->number >= 0 ? 1 : 0;
    return units > kReductionsBehind;
  };
  while (place.unit->is_queued || (place.unit->number >= 0 && too_many()))
    RETURN_IF_ERROR(FinishOldestReduction());
  place.piece->OpenGrads();
  return absl::OkStatus();
}

absl::Status FullyShardedDataParallel::Reduce(Unit& unit) {
  while (unit.is_queued) RETURN_IF_ERROR(FinishOldestReduction());
  for (const auto& piece : unit.pieces) piece->StartReduce();
  unit.is_queued = true;
  unit.is_last = is_last_microbatch_;
  reducing_.push_back(&unit);
  return absl::OkStatus();
}

absl::Status FullyShardedDataParallel::FinishOldestReduction() {
  Unit& unit = *reducing_.front();
  for (const auto& piece : unit.pieces) {
    RETURN_IF_ERROR(piece->FinishReduce());
    if (unit.is_last) piece->StartOuterReduce();
  }
  unit.is_queued = false;
  reducing_.pop_front();
  return absl::OkStatus();
}

absl::Status FullyShardedDataParallel::EndBackward(int chunk) {
  Chunk& ended = *chunks_[chunk];
  ended.at_start = true;
  for (const auto& root : ended.roots) {
    if (options_.root_by_microbatch) RETURN_IF_ERROR(Release(*root));
    RETURN_IF_ERROR(Reduce(*root));
  }
  return absl::OkStatus();
}

absl::Status FullyShardedDataParallel::FinishGradSync(int chunk) {
  while (!reducing_.empty()) RETURN_IF_ERROR(FinishOldestReduction());
  for (Unit* unit : chunks_[chunk]->all()) {
    for (const auto& piece : unit->pieces) {
      if (piece->grads_are_open() && !piece->is_alone()) {
        return absl::InternalError(
            absl::StrCat("a gradient of the unit that holds ", piece->params()[0]->name,
                         " arrived after its reduction had started: it is lost"));
      }
      piece->StartOuterReduce();
    }
  }
  for (Unit* unit : chunks_[chunk]->all()) {
    for (const auto& piece : unit->pieces) {
      RETURN_IF_ERROR(piece->FinishStep());
      // The optimizer writes the shards next.
      RETURN_IF_ERROR(piece->Expire());
    }
  }
  return absl::OkStatus();
}

void FullyShardedDataParallel::ZeroGradBuffer() {
  for (const auto& chunk : chunks_) {
    chunk->at_start = true;
    for (Unit* unit : chunk->all())
      for (const auto& piece : unit->pieces) piece->ZeroGrads();
  }
}

void FullyShardedDataParallel::ForgetUnfinished() {
  reducing_.clear();
  is_last_microbatch_ = true;
  for (const auto& chunk : chunks_) {
    chunk->at_start = true;
    chunk->in_backward = -1;
    for (Unit* unit : chunk->all()) {
      unit->is_queued = unit->is_last = false;
      for (const auto& piece : unit->pieces) piece->ForgetUnfinished();
    }
    // Of a backward pass that was broken off.
    for (const ParameterPtr& p : chunk->params) p->data.mutable_grad() = at::Tensor();
  }
}

void FullyShardedDataParallel::ScaleGradients(double factor) {
  for (const auto& chunk : chunks_)
    for (Unit* unit : chunk->all())
      for (const auto& piece : unit->pieces) piece->ScaleOwned(factor);
}

absl::Status FullyShardedDataParallel::BroadcastParams() {
  if (options_.broadcast_params) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "parameters are sharded already: ask for FsdpOptions::broadcast_params");
}

std::vector<OwnedShard> FullyShardedDataParallel::shards() const {
  std::vector<OwnedShard> shards;
  for (const auto& chunk : chunks_) {
    std::unordered_map<const Parameter*, OwnedShard> owned;  // a rank has one part of each at most
    for (const Unit* unit : chunk->all())
      for (const auto& piece : unit->pieces)
        for (const OwnedShard& shard : piece->owned()) owned.emplace(shard.parameter.get(), shard);
    for (const ParameterPtr& p : chunk->params)
      if (const auto found = owned.find(p.get()); found != owned.end())
        shards.push_back(found->second);
  }
  return shards;
}

absl::Status FullyShardedDataParallel::SyncParams() {
  for (const auto& chunk : chunks_)
    for (Unit* unit : chunk->all()) RETURN_IF_ERROR(StartGather(*unit));
  for (const auto& chunk : chunks_)
    for (Unit* unit : chunk->all()) RETURN_IF_ERROR(FinishGather(*unit));
  return absl::OkStatus();
}

absl::Status FullyShardedDataParallel::ReleaseParams() {
  for (const auto& chunk : chunks_)
    for (Unit* unit : chunk->all()) RETURN_IF_ERROR(Release(*unit));
  return absl::OkStatus();
}

std::vector<DataParallel::LocalNorm> FullyShardedDataParallel::LocalNorms() const {
  std::vector<const Unit*> units;
  std::vector<const ShardedPiece*> pieces;
  std::vector<at::Tensor> pending;
  for (const auto& chunk : chunks_) {
    for (const Unit* unit : chunk->all()) {
      for (const auto& piece : unit->pieces) {
        for (const at::Tensor& norm : piece->norms()) {
          units.push_back(unit);
          pieces.push_back(piece.get());
          pending.push_back(norm);
        }
      }
    }
  }
  std::vector<LocalNorm> norms;
  if (pending.empty()) return norms;
  const at::Tensor read = at::stack(pending).cpu();  // one look at the device for all of them
  for (size_t i = 0; i < pieces.size(); ++i) {
    norms.push_back(
        {absl::StrCat(units[i]->number < 0 ? "the root" : absl::StrCat("unit ", units[i]->number),
                      ", where ", pieces[i]->params()[0]->name, " is first"),
         read.const_data_ptr<double>()[i]});
  }
  return norms;
}

}  // namespace muster
