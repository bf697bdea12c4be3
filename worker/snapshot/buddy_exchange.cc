#include "worker/snapshot/buddy_exchange.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <string>

#include <ATen/ATen.h>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace muster {
namespace {

constexpr int64_t kChunk = 4 << 20;  // bytes a message

// What goes before a snapshot: has one, slot number, stamp.
constexpr int64_t kHeadNumbers = 8;
using Head = std::array<int64_t, kHeadNumbers>;

Head HeadOf(SnapshotSlot slot, const SnapshotStamp& stamp) {
  return {1,
          slot.slot,
          stamp.iteration,
          stamp.epoch,
          stamp.index_bytes,
          stamp.content_bytes,
          int64_t{stamp.index_crc},
          int64_t{stamp.content_crc}};
}

std::vector<int> SourcesOf(const std::vector<int>& buddies, int rank) {
  std::vector<int> sources;
  for (size_t r = 0; r < buddies.size(); ++r) {
    if (buddies[r] == rank) sources.push_back(static_cast<int>(r));
  }
  return sources;
}

}  // namespace

// A copy that is being received.
struct BuddyExchange::Incoming {
  int source = 0;
  at::Tensor head;  // on the communicator's device
  bool has = false;
  SnapshotSlot slot;
  SnapshotStamp stamp;
  std::unique_ptr<SlotWriter> writer;  // null: no room, the bytes are thrown away
  int64_t received = 0;
  absl::Status status;
};

BuddyExchange::BuddyExchange(CommunicatorPtr group, c10::Device device, std::vector<int> buddies,
                             SnapshotMemory* memory, CopyPace& pace)
    : group_(std::move(group)),
      device_(device),
      buddy_(buddies[MirrorOf(group_->rank())]),
      sources_(SourcesOf(buddies, MirrorOf(group_->rank()))),
      memory_(memory),
      pace_(pace) {}

at::Tensor BuddyExchange::Room(std::vector<at::Tensor>& rooms, size_t index, int64_t bytes) {
  if (rooms.size() <= index) rooms.resize(index + 1);
  at::Tensor& room = rooms[index];
  if (!room.defined())
    room = at::empty({kChunk}, at::TensorOptions().dtype(at::kByte).device(device_));
  return room.narrow(0, 0, bytes);
}

absl::Status BuddyExchange::ExchangeHeads(std::vector<Incoming>& incoming,
                                          const at::Tensor& my_head) {
  std::vector<P2POp> batch;
  for (Incoming& copy : incoming) {
    copy.head = at::empty({kHeadNumbers}, at::TensorOptions().dtype(at::kLong).device(device_));
    batch.push_back(
        {.kind = P2POp::Kind::kRecv, .tensor = copy.head, .peer = MirrorOf(copy.source)});
  }
  if (buddy_ >= 0)
    batch.push_back(
        {.kind = P2POp::Kind::kSend, .tensor = my_head.to(device_), .peer = MirrorOf(buddy_)});
  RETURN_IF_ERROR(group_->SendRecv(std::move(batch))->Wait());
  for (Incoming& copy : incoming) {
    const at::Tensor numbers = copy.head.cpu();
    Head head;
    std::memcpy(head.data(), numbers.const_data_ptr(), sizeof(head));
    copy.has = head[0] == 1;
    if (!copy.has) {
      copy.status = absl::UnavailableError(absl::StrCat("rank ", copy.source, " has no snapshot"));
      continue;
    }
    copy.slot = {copy.source, head[1]};
    copy.stamp = {.iteration = head[2],
                  .epoch = head[3],
                  .index_bytes = head[4],
                  .content_bytes = head[5],
                  .index_crc = static_cast<uint32_t>(head[6]),
                  .content_crc = static_cast<uint32_t>(head[7])};
    if (memory_ == nullptr) {
      copy.status = absl::ResourceExhaustedError("there is no snapshot memory here");
      continue;
    }
    auto writer = memory_->Begin(copy.slot, copy.stamp.content_bytes);
    copy.status = writer.status();
    if (writer.ok()) copy.writer = *std::move(writer);
  }
  return absl::OkStatus();
}

absl::Status BuddyExchange::ExchangeChunks(std::vector<Incoming>& incoming,
                                           absl::string_view outgoing) {
  while (true) {
    std::vector<P2POp> batch;
    std::vector<std::pair<Incoming*, at::Tensor>> chunks;
    size_t room = 0;
    for (Incoming& copy : incoming) {
      if (!copy.has || copy.received == copy.stamp.content_bytes) continue;
      const int64_t count = std::min(kChunk, copy.stamp.content_bytes - copy.received);
      const at::Tensor chunk = Room(rooms_, room++, count);
      batch.push_back({.kind = P2POp::Kind::kRecv, .tensor = chunk, .peer = MirrorOf(copy.source)});
      chunks.emplace_back(&copy, chunk);
      copy.received += count;
    }
    if (!outgoing.empty()) {
      const absl::string_view sent = outgoing.substr(0, kChunk);
      outgoing.remove_prefix(sent.size());
      const int64_t count = static_cast<int64_t>(sent.size());
      at::Tensor chunk = at::from_blob(const_cast<char*>(sent.data()), {count},
                                       at::TensorOptions().dtype(at::kByte));
      if (!device_.is_cpu()) chunk = Room(rooms_, room++, count).copy_(chunk);
      batch.push_back({.kind = P2POp::Kind::kSend, .tensor = chunk, .peer = MirrorOf(buddy_)});
    }
    if (batch.empty()) return absl::OkStatus();
    RETURN_IF_ERROR(group_->SendRecv(std::move(batch))->Wait());
    pace_.Begin();
    for (const auto& [copy, chunk] : chunks) {
      if (copy->writer == nullptr) continue;
      const at::Tensor bytes = chunk.cpu();
      copy->writer->Append(
          {static_cast<const char*>(bytes.const_data_ptr()), static_cast<size_t>(bytes.numel())});
    }
    pace_.Pause();
  }
}

absl::Status BuddyExchange::Exchange(std::optional<SnapshotSlot> mine) {
  if (broken_) return absl::AbortedError("the group of the snapshots' copies is dead");
  kept_.clear();
  std::vector<Incoming> incoming;
  for (const int source : sources_) incoming.push_back({.source = source});
  Head head{};
  absl::string_view outgoing;
  std::optional<SnapshotMemory::View> view;
  if (mine.has_value() && buddy_ >= 0) {
    ASSIGN_OR_RETURN(view, memory_->Map(*mine));
    head = HeadOf(*mine, view->stamp);
    outgoing = view->bytes();
  }
  const at::Tensor my_head = at::empty({kHeadNumbers}, at::TensorOptions().dtype(at::kLong));
  std::memcpy(my_head.mutable_data_ptr(), head.data(), sizeof(head));
  absl::Status status = ExchangeHeads(incoming, my_head);
  if (status.ok()) status = ExchangeChunks(incoming, outgoing);
  if (!status.ok()) {
    broken_ = true;
    return Annotate(status, "copies of snapshots");
  }
  for (Incoming& copy : incoming) {
    if (copy.writer != nullptr) copy.status.Update(copy.writer->Finish(copy.stamp));
    if (copy.status.ok()) {
      kept_.insert(copy.slot);
    } else {
      status.Update(copy.status);
    }
  }
  return status;
}

}  // namespace muster
