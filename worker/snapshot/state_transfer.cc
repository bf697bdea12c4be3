#include "worker/snapshot/state_transfer.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/ckpt/transfer_plan.h"
#include "worker/checkpoint/exchange.h"
#include "worker/checkpoint/tensor_slice.h"
#include "worker/snapshot/packed_stream.h"
#include "worker/snapshot/slice_codec.h"

namespace muster {
namespace {

// What one member says of itself.
struct Member {
  std::vector<TransferSlice> gives, wants;
  std::set<std::string> gives_texts;
  std::vector<std::string> wants_texts, likes_texts;
  int64_t max_bytes = 0;
};

absl::StatusOr<TransferSlice> Describe(const NamedTensor& tensor) {
  ASSIGN_OR_RETURN(TensorSlice slice, SliceOf(tensor));
  absl::StatusOr<DType> dtype = DTypeOf(tensor.data.scalar_type());
  if (!dtype.ok()) return Annotate(dtype.status(), absl::StrCat("tensor \"", tensor.name, "\""));
  return TransferSlice{.tensor = tensor.name,
                       .dtype = *dtype,
                       .global_shape = std::move(slice.global_shape),
                       .box = std::move(slice.box),
                       .allow_dim0_padding = tensor.allow_dim0_padding};
}

absl::StatusOr<std::string> EncodeMember(const TransferRequest& request) {
  ByteWriter out;
  for (const std::vector<NamedTensor>* list : {&request.gives, &request.wants}) {
    out.Number(static_cast<int64_t>(list->size()));
    for (const NamedTensor& tensor : *list) {
      ASSIGN_OR_RETURN(const TransferSlice slice, Describe(tensor));
      out.Slice(slice);
    }
  }
  out.Number(static_cast<int64_t>(request.gives_texts.size()));
  for (const auto& [key, text] : request.gives_texts) out.Text(key);
  for (const auto* keys : {&request.wants_texts, &request.likes_texts}) {
    out.Number(static_cast<int64_t>(keys->size()));
    for (const std::string& key : *keys) out.Text(key);
  }
  out.Number(request.max_bytes_in_flight);
  return out.Take();
}

absl::StatusOr<Member> DecodeMember(absl::string_view bytes) {
  ByteReader in(bytes);
  Member member;
  for (std::vector<TransferSlice>* list : {&member.gives, &member.wants}) {
    for (int64_t n = in.Count(in.bytes_left()); n > 0 && in.ok(); --n) list->push_back(in.Slice());
  }
  for (int64_t n = in.Count(in.bytes_left()); n > 0 && in.ok(); --n)
    member.gives_texts.insert(in.Text());
  for (std::vector<std::string>* keys : {&member.wants_texts, &member.likes_texts}) {
    for (int64_t n = in.Count(in.bytes_left()); n > 0 && in.ok(); --n) keys->push_back(in.Text());
  }
  member.max_bytes = in.Number();
  if (!in.ok() || !in.at_end())
    return absl::InternalError("a member's list of slices cannot be read");
  return member;
}

// Collective.
absl::StatusOr<std::vector<Member>> ExchangeMembers(const TransferRequest& request,
                                                    Communicator& members) {
  ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                   ExchangeOutcomes(EncodeMember(request), request.device, members));
  std::vector<Member> all;
  for (const std::string& text : texts) {
    ASSIGN_OR_RETURN(Member member, DecodeMember(text));
    all.push_back(std::move(member));
  }
  return all;
}

// Of each text that a member wants and does not hold: the first member that holds it. Keys by that
// member.
absl::StatusOr<std::vector<std::set<std::string>>> PlanTexts(const std::vector<Member>& members) {
  std::vector<std::set<std::string>> given(members.size());
  // False: nobody holds it.
  const auto plan = [&](size_t m, const std::string& key) {
    if (members[m].gives_texts.contains(key)) return true;
    const auto giver = std::find_if(members.begin(), members.end(), [&key](const Member& other) {
      return other.gives_texts.contains(key);
    });
    if (giver == members.end()) return false;
    given[giver - members.begin()].insert(key);
    return true;
  };
  for (size_t m = 0; m < members.size(); ++m) {
    for (const std::string& key : members[m].wants_texts) {
      if (!plan(m, key)) {
        return absl::FailedPreconditionError(
            absl::StrCat("text \"", key, "\", which member ", m, " wants, is held by no member"));
      }
    }
    for (const std::string& key : members[m].likes_texts) plan(m, key);
  }
  return given;
}

// Collective, unless nobody needs a text of another.
absl::StatusOr<std::map<std::string, std::string>> ExchangeTextsByKey(
    const TransferRequest& request, const std::vector<std::set<std::string>>& given,
    Communicator& members) {
  std::map<std::string, std::string> mine, all = request.gives_texts;
  const bool any =
      std::any_of(given.begin(), given.end(), [](const auto& s) { return !s.empty(); });
  if (any) {
    for (const std::string& key : given[members.rank()]) mine[key] = request.gives_texts.at(key);
    ASSIGN_OR_RETURN(const std::vector<std::string> sent,
                     ExchangeTexts(EncodeTexts(mine), request.device, members));
    for (const std::string& text : sent) {
      ASSIGN_OR_RETURN(auto texts, DecodeTexts(text));
      all.merge(texts);  // what is here already stays
    }
  }
  std::map<std::string, std::string> wanted;
  for (const std::string& key : request.wants_texts) wanted[key] = all.at(key);
  for (const std::string& key : request.likes_texts) {
    if (const auto text = all.find(key); text != all.end()) wanted[key] = text->second;
  }
  return wanted;
}

// Wanted memory as a row of elements; copied back at the end where it is no such row.
struct Target {
  at::Tensor data;  // as wanted
  at::Tensor flat;
  bool staged = false;
};

Target TargetOf(const at::Tensor& wanted) {
  Target target{.data = wanted.detach()};
  target.staged = !target.data.is_contiguous();
  // Elements that nobody fills (padding) keep their values.
  target.flat = (target.staged ? target.data.contiguous() : target.data).view({-1});
  return target;
}

class Mover {
 public:
  Mover(const TransferRequest& request, const std::vector<Member>& members, Communicator& group)
      : members_(members), group_(group), device_(request.device) {
    for (const NamedTensor& give : request.gives) sources_.push_back(give.data);
    for (const NamedTensor& want : request.wants) targets_.push_back(TargetOf(want.data));
    int64_t budget = members[0].max_bytes;
    for (const Member& member : members) budget = std::min(budget, member.max_bytes);
    const int64_t others = std::max(1, group.size() - 1);
    chunk_bytes_ = std::max(kLeastChunk, budget / (2 * others));
  }

  absl::Status Move(const std::vector<TransferRun>& runs, TransferResult& result) {
    const int me = group_.rank();
    std::vector<PackedStream> to(group_.size()), from(group_.size());
    for (const TransferRun& run : runs) {
      const int64_t size = DTypeSize(OfferOf(run).dtype);
      if (run.from != run.to) result.bytes_moved += run.count * size;
      if (run.from == me && run.to == me) {
        if (CopyHere(run)) result.bytes_copied += run.count * size;
      } else if (run.from == me) {
        to[run.to].Add(run, size);
        result.bytes_sent += run.count * size;
      } else if (run.to == me) {
        from[run.from].Add(run, size);
        result.bytes_received += run.count * size;
      }
    }
    while (true) {
      const absl::StatusOr<bool> moved = MoveChunks(to, from);
      RETURN_IF_ERROR(moved.status());
      if (!*moved) break;
    }
    for (Target& target : targets_) {
      if (target.staged) target.data.copy_(target.flat.view(target.data.sizes()));
    }
    return absl::OkStatus();
  }

 private:
  static constexpr int64_t kLeastChunk = 4 << 10;  // bytes

  const TransferSlice& OfferOf(const TransferRun& run) const {
    return members_[run.from].gives[run.offer];
  }
  at::Tensor SourceOf(const TransferRun& run) {
    at::Tensor& source = sources_[run.offer];
    return source.is_contiguous() ? source.detach().view({-1})
                                  : (source = source.detach().contiguous()).view({-1});
  }

  static void Copy(const at::Tensor& source, int64_t s, const at::Tensor& target, int64_t t,
                   int64_t count) {
    if (source.device().is_cpu() && target.device().is_cpu() &&
        source.scalar_type() == target.scalar_type()) {
      const int64_t size = source.element_size();
      std::memcpy(static_cast<char*>(target.mutable_data_ptr()) + t * size,
                  static_cast<const char*>(source.const_data_ptr()) + s * size,
                  static_cast<size_t>(count * size));
      return;
    }
    target.narrow(0, t, count).copy_(source.narrow(0, s, count));
  }

  // False: it is the same memory.
  bool CopyHere(const TransferRun& run) {
    const at::Tensor source = SourceOf(run);
    const at::Tensor& target = targets_[run.want].flat;
    if (source.scalar_type() == target.scalar_type() &&
        source.narrow(0, run.source, run.count).const_data_ptr() ==
            target.narrow(0, run.target, run.count).const_data_ptr()) {
      return false;
    }
    Copy(source, run.source, target, run.target, run.count);
    return true;
  }

  // A row of `segment` inside the chunk's bytes.
  static at::Tensor Part(const at::Tensor& bytes, const PackedStream::Segment& segment,
                         at::ScalarType type, int64_t size) {
    return bytes.narrow(0, segment.at, segment.count * size).view(type);
  }

  struct Buffer {
    at::Tensor bytes;
    std::vector<PackedStream::Segment> segments;
  };

  // The next chunk of every stream. False: all have ended.
  absl::StatusOr<bool> MoveChunks(std::vector<PackedStream>& to, std::vector<PackedStream>& from) {
    std::vector<P2POp> batch;
    std::vector<Buffer> received;
    for (int peer = 0; peer < group_.size(); ++peer) {
      Buffer buffer;
      if (const int64_t bytes = from[peer].Next(chunk_bytes_, buffer.segments); bytes > 0) {
        buffer.bytes = Room(receive_room_, peer, bytes);
        batch.push_back({.kind = P2POp::Kind::kRecv, .tensor = buffer.bytes, .peer = peer});
        received.push_back(std::move(buffer));
      }
      std::vector<PackedStream::Segment> segments;
      if (const int64_t bytes = to[peer].Next(chunk_bytes_, segments); bytes > 0) {
        const at::Tensor packed = Room(send_room_, peer, bytes);
        for (const PackedStream::Segment& segment : segments) {
          const at::Tensor source = SourceOf(segment.run);
          const at::Tensor part =
              Part(packed, segment, source.scalar_type(), source.element_size());
          Copy(source, segment.run.source + segment.skip, part, 0, segment.count);
        }
        batch.push_back({.kind = P2POp::Kind::kSend, .tensor = packed, .peer = peer});
      }
    }
    if (batch.empty()) return false;
    RETURN_IF_ERROR(Annotate(group_.SendRecv(std::move(batch))->Wait(), "moving state"));
    for (const Buffer& buffer : received) {
      for (const PackedStream::Segment& segment : buffer.segments) {
        const DType dtype = OfferOf(segment.run).dtype;
        const at::Tensor part = Part(buffer.bytes, segment, ScalarTypeOf(dtype), DTypeSize(dtype));
        Copy(part, 0, targets_[segment.run.want].flat, segment.run.target + segment.skip,
             segment.count);
      }
    }
    return true;
  }

  // Buffers are kept from chunk to chunk: the communicator is done with one when it is used again.
  at::Tensor Room(std::map<int, at::Tensor>& rooms, int peer, int64_t bytes) {
    at::Tensor& room = rooms[peer];
    if (!room.defined() || room.numel() < bytes)
      room = at::empty({bytes}, at::TensorOptions().dtype(at::kByte).device(device_));
    return room.narrow(0, 0, bytes);
  }

  const std::vector<Member>& members_;
  Communicator& group_;
  const c10::Device device_;
  int64_t chunk_bytes_ = 0;
  std::vector<at::Tensor> sources_;
  std::vector<Target> targets_;
  std::map<int, at::Tensor> send_room_, receive_room_;  // by peer
};

}  // namespace

absl::StatusOr<TransferResult> TransferState(const TransferRequest& request,
                                             Communicator& members) {
  const at::NoGradGuard no_grad;
  ASSIGN_OR_RETURN(const std::vector<Member> all, ExchangeMembers(request, members));
  std::vector<std::vector<TransferSlice>> gives, wants;
  for (const Member& member : all) {
    gives.push_back(member.gives);
    wants.push_back(member.wants);
  }
  // From here to the first message: the same answers on every member.
  ASSIGN_OR_RETURN(const std::vector<TransferRun> runs, PlanTransfer(gives, wants));
  ASSIGN_OR_RETURN(const std::vector<std::set<std::string>> given_texts, PlanTexts(all));
  TransferResult result;
  ASSIGN_OR_RETURN(result.texts, ExchangeTextsByKey(request, given_texts, members));
  RETURN_IF_ERROR(Mover(request, all, members).Move(runs, result));
  return result;
}

}  // namespace muster
