#include "worker/snapshot/snapshotter.h"

#include <algorithm>
#include <array>
#include <exception>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"
#include "worker/checkpoint/exchange.h"
#include "worker/checkpoint/tensor_slice.h"
#include "worker/snapshot/snapshot_content.h"

namespace muster {
namespace {

absl::StatusOr<TransferSlice> SliceOfTensor(const NamedTensor& tensor) {
  ASSIGN_OR_RETURN(TensorSlice slice, SliceOf(tensor));
  ASSIGN_OR_RETURN(const DType dtype, DTypeOf(tensor.data.scalar_type()));
  return TransferSlice{.tensor = tensor.name,
                       .dtype = dtype,
                       .global_shape = std::move(slice.global_shape),
                       .box = std::move(slice.box)};
}

}  // namespace

Snapshotter::Snapshotter(const SnapshotterOptions& options)
    : options_(options),
      pace_(options.copy_share, options.clock != nullptr ? *options.clock : real_clock_),
      copier_(pace_) {
  if (options_.memory.empty()) return;
  auto memory = SnapshotMemory::Open(options_.memory, options_.job_id);
  if (memory.ok()) {
    memory_ = *std::move(memory);
    for (const std::string& note : memory_->notes()) Event(note);
  } else {
    Event(absl::StrCat("no snapshots can be kept here: ", memory.status().message()));
  }
}

Snapshotter::~Snapshotter() {
  Detach();
  {
    const MutexLock lock(&mu_);
    stop_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

void Snapshotter::Detach() {
  AwaitIdle();
  exchange_.reset();
  on_ = false;
}

void Snapshotter::AwaitIdle() {
  pace_.Hurry();
  {
    const MutexLock lock(&mu_);
    while (busy_ || !queue_.empty()) changed_.Wait(&mu_);
  }
  pace_.Relax();
  TakeOutcomes();
}

std::vector<HeldSnapshot> Snapshotter::List(int rank) const {
  return memory_ == nullptr ? std::vector<HeldSnapshot>() : ListSnapshots(*memory_, rank);
}

absl::StatusOr<SnapshotContents> Snapshotter::Read(SnapshotSlot slot) {
  if (memory_ == nullptr) return absl::NotFoundError("there is no snapshot memory here");
  absl::StatusOr<SnapshotContents> contents = ReadSnapshot(*memory_, slot);
  if (absl::IsDataLoss(contents.status())) {
    Event(std::string(contents.status().message()));
    memory_->Drop(slot);
  }
  return contents;
}

absl::Status Snapshotter::Attach(const SnapshotEpoch& epoch, int64_t iteration, int64_t counted,
                                 Communicator& world, std::optional<int64_t> safe) {
  Detach();
  epoch_ = epoch;
  told_.clear();
  not_before_ = 0;
  kept_.clear();
  if (options_.interval <= 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::vector<std::string> said,
                   ExchangeTexts(absl::StrCat(memory_ != nullptr ? 1 : 0, " ", epoch.buddy),
                                 epoch.device, world));
  std::vector<int> buddies;
  int without = 0;
  for (const std::string& text : said) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(text, ' ');
    without += parts.first == "0" ? 1 : 0;
    int buddy = -1;
    if (!absl::SimpleAtoi(parts.second, &buddy) || buddy >= world.size())
      return absl::InternalError(absl::StrCat("a rank's buddy is \"", text, "\""));
    buddies.push_back(buddy);
  }
  const bool any_buddy = std::any_of(buddies.begin(), buddies.end(), [](int b) { return b >= 0; });
  if (any_buddy) {
    std::vector<int> all;  // in reverse: see buddy_exchange.h
    for (size_t r = buddies.size(); r > 0; --r) all.push_back(static_cast<int>(r) - 1);
    ASSIGN_OR_RETURN(CommunicatorPtr group, world.Split("snapshots", std::move(all)));
    exchange_ = std::make_unique<BuddyExchange>(std::move(group), epoch.device, std::move(buddies),
                                                memory_.get(), pace_);
  }
  if (memory_ != nullptr) {
    for (const auto& [slot, stamp] : memory_->Complete()) {
      if (stamp.iteration > iteration) memory_->Drop(slot);  // of a discarded future
    }
    ChooseSeries(counted);
  }
  generations_.Restored(iteration, counted, any_buddy ? safe : std::nullopt);
  if (without > 0 && epoch.rank == 0) {
    Event(absl::StrCat("no snapshots are taken: ", without, " of ", said.size(),
                       " ranks have no memory for them"));
  }
  on_ = without == 0;
  if (on_ && !thread_.joinable()) thread_ = std::thread([this] { Run(); });
  return absl::OkStatus();
}

// Goes on with the slots in which this rank's generations lie, so that no more than three are kept;
// with new ones where the counted one is not among them, or where the ranks or their pieces are
// others now: then a copy of it, here or with a buddy, must not be overwritten.
void Snapshotter::ChooseSeries(int64_t counted) {
  const std::vector<HeldSnapshot> held = ListSnapshots(*memory_, epoch_.rank);
  const auto mine = [this](const HeldSnapshot& snapshot) {
    return snapshot.state.kind == HeldState::Kind::kOwnSnapshot &&
           snapshot.state.layout == epoch_.layout && snapshot.state.pieces == epoch_.pieces;
  };
  std::array<int64_t, kSnapshotSlots> complete;
  complete.fill(kNoGeneration);
  series_ = epoch_.number;
  generations_ = Generations();
  const auto newest = std::find_if(held.begin(), held.end(), [&](const HeldSnapshot& snapshot) {
    return mine(snapshot) && (counted == kNoGeneration || snapshot.state.iteration == counted);
  });
  if (newest == held.end()) return;
  series_ = newest->slot.slot / kSnapshotSlots;
  for (const HeldSnapshot& snapshot : held) {
    if (mine(snapshot) && snapshot.slot.slot / kSnapshotSlots == series_)
      complete[snapshot.slot.slot % kSnapshotSlots] = snapshot.state.iteration;
  }
  generations_ = Generations(complete);
}

bool Snapshotter::Due(int64_t iteration) const {
  return on_ && iteration >= not_before_ && generations_.Due(iteration, options_.interval);
}

void Snapshotter::Begin(SnapshotState state) {
  if (!on_) return;
  TakeOutcomes();
  const std::optional<int> slot = generations_.Begin(state.iteration);
  Try work;
  if (slot.has_value()) {
    work.slot = SnapshotSlot{epoch_.rank, series_ * kSnapshotSlots + *slot};
    work.state = std::move(state);
    work.after = TensorCopier::MarkNow(epoch_.device);
  } else {
    Event("a snapshot is left out: the copy of the one before has not ended");
  }
  pace_.Relax();
  const MutexLock lock(&mu_);
  if (work.slot.has_value()) copied_ = false;
  queue_.push_back(std::move(work));
  changed_.NotifyAll();
}

void Snapshotter::AwaitCopied() {
  const MutexLock lock(&mu_);
  if (copied_) return;
  pace_.Hurry();
  while (!copied_) changed_.Wait(&mu_);
}

void Snapshotter::MarkCopied() {
  pace_.Relax();  // the buddy's copy has time
  const MutexLock lock(&mu_);
  copied_ = true;
  changed_.NotifyAll();
}

int64_t Snapshotter::complete_through() {
  if (!on_) return kNoGeneration;
  TakeOutcomes();
  return generations_.vote();
}

void Snapshotter::OnCounted(int64_t result) {
  if (!on_) return;
  const std::optional<int64_t> open = generations_.open_try();
  const int64_t before = generations_.newest_counted();
  generations_.Counted(result);
  // What made it fail is not gone at once, and trying costs all ranks a copy.
  if (open.has_value() && result == kGivenUp) not_before_ = *open + options_.interval;
  if (generations_.newest_counted() != before) FreeOthers();
}

void Snapshotter::TakeOutcomes() {
  std::deque<Outcome> outcomes;
  {
    const MutexLock lock(&mu_);
    std::swap(outcomes, outcomes_);
  }
  for (Outcome& outcome : outcomes) {
    // Where a source has none, that rank tells why.
    if (!outcome.status.ok() && !absl::IsUnavailable(outcome.status))
      Event(absl::StrCat("a snapshot is given up: ", outcome.status.message()));
    kept_ = std::move(outcome.kept);
    if (!outcome.had_slot) continue;
    if (outcome.status.ok()) {
      generations_.Complete();
    } else {
      generations_.GiveUp();
    }
  }
}

// All ranks hold a newer generation now: what is in slots of former ranks and layouts is of no use.
void Snapshotter::FreeOthers() {
  std::set<std::pair<int64_t, int64_t>> used = {{epoch_.rank, series_}};  // rank, series
  for (const SnapshotSlot& slot : kept_) used.insert({slot.rank, slot.slot / kSnapshotSlots});
  for (const SnapshotSlot& slot : memory_->Slots()) {
    if (!used.contains({slot.rank, slot.slot / kSnapshotSlots})) memory_->Free(slot);
  }
}

void Snapshotter::Event(const std::string& text) {
  if (told_.insert(text).second) events_.push_back(text);
}

std::vector<std::string> Snapshotter::TakeEvents() {
  std::vector<std::string> events = std::exchange(events_, {});
  for (std::string& text : events) text = absl::StrCat("rank ", epoch_.rank, ": ", text);
  return events;
}

// ---- The thread.

void Snapshotter::Run() {
  const at::NoGradGuard no_grad;
  while (true) {
    Try work;
    {
      const MutexLock lock(&mu_);
      while (queue_.empty() && !stop_) changed_.Wait(&mu_);
      if (queue_.empty()) return;
      work = std::move(queue_.front());
      queue_.pop_front();
      busy_ = true;
    }
    Outcome outcome{.had_slot = work.slot.has_value()};
    try {
      outcome.status = Take(work);
    } catch (const std::exception& error) {
      outcome.status = absl::InternalError(error.what());
    }
    if (work.slot.has_value()) MarkCopied();
    if (exchange_ != nullptr) outcome.kept = exchange_->kept();
    const MutexLock lock(&mu_);
    outcomes_.push_back(std::move(outcome));
    busy_ = false;
    changed_.NotifyAll();
  }
}

absl::Status Snapshotter::Take(Try& work) {
  absl::Status status;
  if (work.slot.has_value()) {
    try {
      status = CopyOwn(work);
    } catch (const std::exception& error) {
      status = absl::InternalError(error.what());
    }
    work.state = {};  // lets go of the tensors
    MarkCopied();
  }
  if (exchange_ == nullptr) return status;
  const bool has = work.slot.has_value() && status.ok();
  const absl::Status sent = exchange_->Exchange(has ? work.slot : std::nullopt);
  // A buddy that had none has its own event.
  if (status.ok()) status = sent;
  return status;
}

absl::Status Snapshotter::CopyOwn(const Try& work) {
  SnapshotContent content{.layout = epoch_.layout,
                          .pieces = epoch_.pieces,
                          .num_pieces = epoch_.num_pieces,
                          .texts = work.state.texts};
  for (const NamedTensor& tensor : work.state.tensors) {
    ASSIGN_OR_RETURN(TransferSlice slice, SliceOfTensor(tensor));
    content.tensors.push_back(std::move(slice));
  }
  const PlacedContent placed = Place(content);
  ASSIGN_OR_RETURN(const std::unique_ptr<SlotWriter> writer,
                   memory_->Begin(*work.slot, placed.bytes));
  writer->Append(placed.index);
  SnapshotStamp stamp{.iteration = work.state.iteration,
                      .epoch = work.state.epoch,
                      .index_bytes = static_cast<int64_t>(placed.index.size()),
                      .content_bytes = placed.bytes,
                      .index_crc = writer->crc()};
  for (size_t i = 0; i < work.state.tensors.size(); ++i) {
    writer->AppendZeros(placed.begins[i] - writer->written());
    copier_.Copy(work.state.tensors[i].data, work.after, *writer);
  }
  writer->AppendZeros(writer->bytes_left());
  stamp.content_crc = writer->crc();
  return writer->Finish(stamp);
}

}  // namespace muster
