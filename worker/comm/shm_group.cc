#include "worker/comm/shm_group.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/base/status.h"

namespace muster {
namespace {

// FNV-1a over the members, in order.
uint64_t KeyOf(const std::vector<int>& ranks) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : absl::StrJoin(ranks, ",")) {
    hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  }
  return hash;
}

}  // namespace

ShmGroup::ShmGroup(std::string name, std::vector<int> ranks, int rank, std::vector<int> node_ranks,
                   std::vector<std::shared_ptr<ShmArena>> arenas)
    : name_(std::move(name)),
      ranks_(std::move(ranks)),
      node_ranks_(std::move(node_ranks)),
      rank_(rank),
      key_(KeyOf(ranks_)),
      arenas_(std::move(arenas)),
      log_(name_, ranks_),
      blocks_(ranks_.size()) {}

absl::Status ShmGroup::Named(const ShmOp& op, absl::StatusCode code,
                             const std::string& what) const {
  return absl::Status(code,
                      absl::StrCat(log_.Name(op.sequence), " (rank ", ranks_[rank_], "): ", what));
}

absl::Status ShmGroup::Admit(const ShmOpPtr& op) {
  if (!blocks_[rank_]) {
    ASSIGN_OR_RETURN(char* const base, arenas_[rank_]->MakeBlock(key_, ShmBlock::Bytes(size())));
    blocks_[rank_].emplace(base, size());
    RingAll(/*for_room=*/false);
  }
  if (op->collective != nullptr) {
    op->number = num_collectives_++;
    blocks_[rank_]->arrived().value.store(num_collectives_);
    collectives_.push_back(op);
    return absl::OkStatus();
  }
  op->parts_left = static_cast<int>(op->transfers.size());
  for (const ShmTransfer& transfer : op->transfers) {
    pipes_[{transfer.is_send, transfer.peer, transfer.channel}].push_back({op, transfer});
  }
  return absl::OkStatus();
}

std::optional<ShmBlock> ShmGroup::BlockOf(int member) {
  std::optional<ShmBlock>& block = blocks_[member];
  if (!block) {
    if (char* const base = arenas_[member]->FindBlock(key_)) block.emplace(base, size());
  }
  return block;
}

void ShmGroup::RingAll(bool for_room) {
  const int from = node_ranks_[rank_];
  for (int m = 0; m < size(); ++m) {
    if (m == rank_) continue;
    if (for_room) arenas_[m]->bell().RingForRoom(from);
    if (!for_room) arenas_[m]->bell().RingForData(from);
  }
}

void ShmGroup::Step(ShmPass& pass) {
  if (!collectives_.empty()) StepCollective(pass);
  for (auto at = pipes_.begin(); at != pipes_.end() && pass.failure.ok();) {
    std::deque<Letter>& letters = at->second;
    Letter& letter = letters.front();
    const bool moved = letter.transfer.is_send ? StepSend(letter, pass) : StepReceive(letter, pass);
    if (moved) {
      pass.progress = true;
      if (letter.moved == letter.transfer.bytes) {
        const ShmOpPtr op = std::move(letter.op);
        letters.pop_front();
        PartDone(op, pass);
      }
    }
    at = letters.empty() ? pipes_.erase(at) : std::next(at);
  }
}

void ShmGroup::PartDone(const ShmOpPtr& op, ShmPass& pass) {
  if (--op->parts_left > 0) return;
  log_.Finish(op->sequence, absl::OkStatus(), absl::Now());
  op->memory.reset();
  op->collective.reset();
  op->done.store(true);
  ++pass.num_done;
}

void ShmGroup::Blocked(const ShmOp& op, uint64_t unmet, bool for_room, ShmPass& pass) {
  // The first of them only: a ring for each would wake this rank as often, to sleep again.
  const int first = node_ranks_[__builtin_ctzll(unmet)];
  (for_room ? pass.awaited.room : pass.awaited.data) |= uint64_t{1} << first;
  pass.next_deadline = std::min(pass.next_deadline, op.deadline);
  const auto ranks_of = [&](auto condition) {
    std::vector<int> found;
    for (int m = 0; m < size(); ++m) {
      if ((unmet >> m & 1) != 0 && condition(m)) found.push_back(ranks_[m]);
    }
    std::sort(found.begin(), found.end());
    return FormatRanks(found);
  };
  if (pass.gone != 0) {
    const std::string gone = ranks_of([&](int m) { return pass.gone >> node_ranks_[m] & 1; });
    if (!gone.empty()) {
      pass.failure =
          Named(op, absl::StatusCode::kUnavailable, absl::StrCat("rank ", gone, " is gone"));
      return;
    }
  }
  if (pass.now >= op.deadline) {
    pass.failure = Named(op, absl::StatusCode::kDeadlineExceeded,
                         absl::StrCat("not done within the limit; waiting for ranks ",
                                      ranks_of([](int) { return true; })));
  }
}

// ---- collectives -------------------------------------------------------------------------------

void ShmGroup::StepCollective(ShmPass& pass) {
  const ShmOpPtr op = collectives_.front();
  ShmCollective& collective = *op->collective;
  const ShmStep step = collective.steps.front();
  if (step.kind == ShmStep::kWrite) {
    if (!HasRoom(*op, pass)) return;
    WriteRound(*op, step);
  } else {
    if (!HasData(*op, collective, pass)) return;
    if (absl::Status status = ReadRound(*op, step); !status.ok()) {
      pass.failure = std::move(status);
      return;
    }
  }
  pass.progress = true;
  collective.steps.pop_front();
  if (!collective.steps.empty()) return;
  collectives_.pop_front();
  at_first_write_ = at_first_read_ = true;
  PartDone(op, pass);
}

bool ShmGroup::HasRoom(const ShmOp& op, ShmPass& pass) {
  if (num_written_ < kNumRounds) return true;
  uint64_t unmet = 0;
  for (int m = 0; m < size(); ++m) {
    if (m == rank_) continue;
    const std::optional<ShmBlock> block = BlockOf(m);
    if (!block || block->read().value.load() + kNumRounds <= num_written_)
      unmet |= uint64_t{1} << m;
  }
  if (unmet != 0) Blocked(op, unmet, /*for_room=*/true, pass);
  return unmet == 0;
}

bool ShmGroup::HasData(const ShmOp& op, const ShmCollective& collective, ShmPass& pass) {
  uint64_t unmet = 0;
  for (int m = 0; m < size(); ++m) {
    if (!collective.ReadsFrom(m)) continue;
    const std::optional<ShmBlock> block = BlockOf(m);
    if (!block || block->written().value.load() <= num_read_) unmet |= uint64_t{1} << m;
  }
  if (unmet != 0) Blocked(op, unmet, /*for_room=*/false, pass);
  return unmet == 0;
}

void ShmGroup::WriteRound(ShmOp& op, const ShmStep& step) {
  ShmBlock& mine = *blocks_[rank_];
  if (std::exchange(at_first_write_, false)) {
    const size_t length = std::min(op.signature.size(), kSignatureBytes - 1);
    std::memcpy(mine.signature(num_written_), op.signature.data(), length);
    mine.signature(num_written_)[length] = '\0';
  }
  op.collective->Write(step, mine.round(num_written_));
  mine.written().value.store(++num_written_);
  RingAll(/*for_room=*/false);
}

absl::Status ShmGroup::CompareSignatures(const ShmOp& op) {
  for (int m = 0; m < size(); ++m) {
    if (!op.collective->ReadsFrom(m)) continue;
    const std::string theirs = blocks_[m]->signature(num_read_);
    const std::string mine = op.signature.substr(0, kSignatureBytes - 1);
    if (theirs == mine) continue;
    return Named(op, absl::StatusCode::kInvalidArgument,
                 absl::StrCat("collective mismatch: rank ", ranks_[m], " started ", theirs,
                              " where rank ", ranks_[rank_], " started ", mine,
                              "; all members must issue the same operations in the same order"));
  }
  return absl::OkStatus();
}

absl::Status ShmGroup::ReadRound(ShmOp& op, const ShmStep& step) {
  if (std::exchange(at_first_read_, false)) RETURN_IF_ERROR(CompareSignatures(op));
  std::vector<const char*> rounds(size());
  for (int m = 0; m < size(); ++m) {
    if (op.collective->ReadsFrom(m)) rounds[m] = blocks_[m]->round(num_read_);
  }
  if (absl::Status status = op.collective->Read(step, rounds); !status.ok()) {
    return Named(op, status.code(), std::string(status.message()));
  }
  blocks_[rank_]->read().value.store(++num_read_);
  RingAll(/*for_room=*/true);
  return absl::OkStatus();
}

// ---- sends and receives ------------------------------------------------------------------------

bool ShmGroup::StepSend(Letter& letter, ShmPass& pass) {
  const auto& [is_send, peer, channel, data, bytes] = letter.transfer;
  ShmBlock& mine = *blocks_[rank_];
  ShmCounter& counter = mine.sent(peer, channel);
  const uint64_t sent = counter.value.load();
  if (sent - mine.received(peer, channel).value.load() >= kPipeChunks) {
    Blocked(*letter.op, uint64_t{1} << peer, /*for_room=*/true, pass);
    return false;
  }
  const int64_t part = std::min<int64_t>(kPipeChunkBytes, bytes - letter.moved);
  if (letter.moved == 0) *mine.message_bytes(peer, channel, sent) = bytes;
  std::memcpy(mine.chunk(peer, channel, sent), data + letter.moved, part);
  letter.moved += part;
  counter.value.store(sent + 1);
  arenas_[peer]->bell().RingForData(node_ranks_[rank_]);
  return true;
}

bool ShmGroup::StepReceive(Letter& letter, ShmPass& pass) {
  const auto& [is_send, peer, channel, data, bytes] = letter.transfer;
  const std::optional<ShmBlock> theirs = BlockOf(peer);
  if (!theirs) {
    Blocked(*letter.op, uint64_t{1} << peer, /*for_room=*/false, pass);
    return false;
  }
  ShmCounter& counter = theirs->received(rank_, channel);
  const uint64_t received = counter.value.load();
  if (theirs->sent(rank_, channel).value.load() == received) {
    Blocked(*letter.op, uint64_t{1} << peer, /*for_room=*/false, pass);
    return false;
  }
  if (letter.moved == 0) {
    const int64_t announced = *theirs->message_bytes(rank_, channel, received);
    if (announced != bytes) {
      pass.failure = Named(*letter.op, absl::StatusCode::kInvalidArgument,
                           absl::StrCat("rank ", ranks_[peer], " sends ", announced,
                                        " bytes but rank ", ranks_[rank_], " receives ", bytes));
      return false;
    }
  }
  const int64_t part = std::min<int64_t>(kPipeChunkBytes, bytes - letter.moved);
  std::memcpy(data + letter.moved, theirs->chunk(rank_, channel, received), part);
  letter.moved += part;
  counter.value.store(received + 1);
  arenas_[peer]->bell().RingForRoom(node_ranks_[rank_]);
  return true;
}

// ---- the end, and reports ----------------------------------------------------------------------

void ShmGroup::Drop(const absl::Status& failure) {
  const auto drop = [&](const ShmOpPtr& op) {
    log_.Finish(op->sequence, failure, absl::Now());
    op->memory.reset();
  };
  for (const ShmOpPtr& op : collectives_) drop(op);
  for (const auto& [key, letters] : pipes_) {
    for (const Letter& letter : letters) drop(letter.op);
  }
  collectives_.clear();
  pipes_.clear();
}

void ShmGroup::NoteArrivals() {
  for (const ShmOpPtr& op : collectives_) {
    for (int m = 0; m < size(); ++m) {
      const std::optional<ShmBlock> block = BlockOf(m);
      if (block && block->arrived().value.load() > static_cast<uint64_t>(op->number)) {
        log_.Arrived(op->sequence, m);
      }
    }
  }
}

}  // namespace muster
