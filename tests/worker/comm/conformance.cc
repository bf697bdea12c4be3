#include "tests/worker/comm/conformance.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "worker/comm/tensor_checks.h"

namespace muster {

void Complaints::ExpectEqual(const at::Tensor& got, const at::Tensor& want,
                             const std::string& what) {
  const at::Tensor g = got.cpu().view(-1).to(at::kDouble);
  const at::Tensor w = want.cpu().view(-1).to(at::kDouble);
  if (g.numel() == w.numel() && at::equal(g, w)) return;
  lines_.push_back(absl::StrCat(what, ": got ", g.numel(), " elements [",
                                g.numel() > 0 ? g[0].item<double>() : 0, " ...], want ", w.numel(),
                                " [", w.numel() > 0 ? w[0].item<double>() : 0, " ...]"));
}

namespace {

// Small whole numbers: sums over 8 ranks are exact in bfloat16.
at::Tensor Values(int rank, int64_t size, int64_t salt, at::ScalarType dtype, at::Device device) {
  const at::Tensor i = at::arange(size, at::kLong);
  const at::Tensor v = i.add(salt).remainder(5).mul(rank + 1).add(i.remainder(3)).sub(4);
  return v.to(dtype).to(device);
}

at::Tensor Reduced(int num_ranks, int64_t size, int64_t salt, ReduceOp op, at::ScalarType dtype,
                   at::Device device) {
  at::Tensor result = Values(0, size, salt, dtype, device);
  for (int rank = 1; rank < num_ranks; ++rank) {
    const at::Tensor other = Values(rank, size, salt, dtype, device);
    if (op == ReduceOp::kSum) result = result + other;
    if (op == ReduceOp::kMax) result = at::maximum(result, other);
    if (op == ReduceOp::kMin) result = at::minimum(result, other);
  }
  return result;
}

struct Scope {
  Communicator& world;
  at::ScalarType dtype;
  at::Device device;
  Complaints& complaints;

  at::Tensor Mine(int64_t size, int64_t salt = 0) const {
    return Values(world.rank(), size, salt, dtype, device);
  }
  at::Tensor Theirs(int rank, int64_t size, int64_t salt = 0) const {
    return Values(rank, size, salt, dtype, device);
  }
  at::Tensor Empty(int64_t size) const {
    return at::full({size}, 77, at::TensorOptions().dtype(dtype).device(device));
  }
  std::string Named(const char* what, int64_t size) const {
    return absl::StrCat(world.name(), " ", what, " of ", size, " ", DtypeName(dtype));
  }
  bool Done(const WorkPtr& work, const std::string& what) const {
    const absl::Status status = work->Wait();
    complaints.ExpectOk(status, what);
    return status.ok();
  }
};

void AllReduce(const Scope& s, int64_t size) {
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin}) {
    const std::string what = s.Named("all_reduce", size) + ReduceOpName(op);
    at::Tensor tensor = s.Mine(size);
    s.Done(s.world.AllReduce(tensor, op), what);
    s.complaints.ExpectEqual(tensor, Reduced(s.world.size(), size, 0, op, s.dtype, s.device), what);
  }
}

void ReduceScatter(const Scope& s, int64_t size) {
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
    const std::string what = s.Named("reduce_scatter", size) + ReduceOpName(op);
    const int64_t all = size * s.world.size();
    const at::Tensor input = s.Mine(all), output = s.Empty(size);
    s.Done(s.world.ReduceScatter(output, input, op), what);
    s.complaints.ExpectEqual(output,
                             Reduced(s.world.size(), all, 0, op, s.dtype, s.device)
                                 .narrow(0, s.world.rank() * size, size),
                             what);
    s.complaints.ExpectEqual(input, s.Mine(all), what + ": its input");
    // In place: the output is the own slice of the input, whose other slices stay as they are.
    const at::Tensor in_place = s.Mine(all),
                     slice = in_place.narrow(0, s.world.rank() * size, size);
    s.Done(s.world.ReduceScatter(slice, in_place, op), what + " in place");
    s.complaints.ExpectEqual(slice, output, what + " in place");
    slice.copy_(input.narrow(0, s.world.rank() * size, size));
    s.complaints.ExpectEqual(in_place, input, what + " in place: its other slices");
  }
}

void AllGather(const Scope& s, int64_t size) {
  const std::string what = s.Named("all_gather", size);
  std::vector<at::Tensor> want;
  for (int rank = 0; rank < s.world.size(); ++rank) want.push_back(s.Theirs(rank, size));
  const at::Tensor output = s.Empty(size * s.world.size());
  s.Done(s.world.AllGather(output, s.Mine(size)), what);
  s.complaints.ExpectEqual(output, at::cat(want), what);
  // In place: the input is the own slice of the output.
  const at::Tensor in_place = s.Empty(size * s.world.size());
  const at::Tensor slice = in_place.narrow(0, s.world.rank() * size, size);
  slice.copy_(s.Mine(size));
  s.Done(s.world.AllGather(in_place, slice), what + " in place");
  s.complaints.ExpectEqual(in_place, at::cat(want), what + " in place");
}

// Rank a sends (a + 2 b) % 3 * rows rows of 2 to rank b.
int64_t Rows(int from, int to, int64_t rows) { return (from + 2 * to) % 3 * rows; }

void AllToAll(const Scope& s, int64_t size) {
  const int n = s.world.size(), me = s.world.rank();
  const std::string what = s.Named("all_to_all", size);
  std::vector<at::Tensor> want;
  for (int from = 0; from < n; ++from) {
    want.push_back(s.Theirs(from, size * n).narrow(0, me * size, size));
  }
  at::Tensor output = s.Empty(size * n);
  s.Done(s.world.AllToAll(output, s.Mine(size * n), {}, {}), what);
  s.complaints.ExpectEqual(output, at::cat(want), what);

  std::vector<int64_t> sent, received;
  for (int peer = 0; peer < n; ++peer) {
    sent.push_back(Rows(me, peer, size));
    received.push_back(Rows(peer, me, size));
  }
  std::vector<at::Tensor> ragged{s.Empty(0).view({0, 2})};
  for (int from = 0; from < n; ++from) {
    int64_t total = 0, begin = 0;
    for (int to = 0; to < n; ++to) {
      if (to == me) begin = total;
      total += Rows(from, to, size);
    }
    ragged.push_back(
        s.Theirs(from, total * 2).view({total, 2}).narrow(0, begin, Rows(from, me, size)));
  }
  const int64_t num_sent = std::accumulate(sent.begin(), sent.end(), int64_t{0});
  const int64_t num_received = std::accumulate(received.begin(), received.end(), int64_t{0});
  output = s.Empty(num_received * 2).view({num_received, 2});
  s.Done(s.world.AllToAll(output, s.Mine(num_sent * 2).view({num_sent, 2}), received, sent),
         what + " ragged");
  s.complaints.ExpectEqual(output, at::cat(ragged), what + " ragged");
}

void Broadcast(const Scope& s, int64_t size) {
  for (int root = 0; root < s.world.size(); ++root) {
    const std::string what = absl::StrCat(s.Named("broadcast", size), " from ", root);
    at::Tensor tensor = s.Mine(size, root);
    s.Done(s.world.Broadcast(tensor, root), what);
    s.complaints.ExpectEqual(tensor, s.Theirs(root, size, root), what);
  }
}

}  // namespace

void CheckCollectives(Communicator& world, at::ScalarType dtype, at::Device device,
                      Complaints& complaints) {
  const Scope s{world, dtype, device, complaints};
  for (const int64_t size : {0, 1, 7, 1000, 40001}) {
    AllReduce(s, size);
    ReduceScatter(s, size);
    AllGather(s, size);
    AllToAll(s, size);
    Broadcast(s, size);
    complaints.ExpectOk(world.Barrier()->Wait(), "barrier");
  }
  at::Tensor scalar =
      at::full({}, world.rank() + 1, at::TensorOptions().dtype(dtype).device(device));
  s.Done(world.AllReduce(scalar, ReduceOp::kSum), "all_reduce of a scalar");
  complaints.ExpectEqual(scalar, at::full({}, world.size() * (world.size() + 1) / 2),
                         "all_reduce of a scalar");
  complaints.Expect(absl::StrContains(world.Describe(), "barrier done in"),
                    "Describe lists what ran: " + world.Describe());
}

void CheckPointToPoint(Communicator& world, at::ScalarType dtype, at::Device device,
                       Complaints& complaints) {
  const Scope s{world, dtype, device, complaints};
  const int n = world.size(), me = world.rank();
  for (const int64_t size : {0, 1, 333, 70000}) {
    // Everybody sends to everybody in one batch, itself included, in an order that would deadlock
    // if the batch did not progress as a whole.
    std::vector<P2POp> batch;
    std::vector<at::Tensor> received;
    for (int peer = 0; peer < n; ++peer) {
      batch.push_back({P2POp::Kind::kSend, s.Mine(size, peer), peer});
    }
    for (int peer = n - 1; peer >= 0; --peer) {
      received.push_back(s.Empty(size));
      batch.push_back({P2POp::Kind::kRecv, received.back(), peer});
    }
    s.Done(world.SendRecv(batch), s.Named("send_recv", size));
    for (int peer = 0; peer < n; ++peer) {
      complaints.ExpectEqual(received[n - 1 - peer], s.Theirs(peer, size, me),
                             absl::StrCat(s.Named("send_recv", size), " from ", peer));
    }
  }
  if (n < 2) return;
  // A send whose receive comes late must not hold up a later receive.
  const int pair = me ^ 1;
  if (pair >= n) return;
  const at::Tensor one = s.Mine(5000), two = s.Empty(5000);
  const WorkPtr send = world.SendRecv({{P2POp::Kind::kSend, one, pair}});
  const WorkPtr receive = world.SendRecv({{P2POp::Kind::kRecv, two, pair}});
  s.Done(receive, "receive behind an unfinished send");
  s.Done(send, "send before a receive");
  complaints.ExpectEqual(two, s.Theirs(pair, 5000), "crossing send and receive");
  // Messages of one direction arrive in order.
  std::vector<WorkPtr> works;
  std::vector<at::Tensor> in_order;
  for (int i = 0; i < 10; ++i) {
    if (me < pair) {
      works.push_back(world.SendRecv({{P2POp::Kind::kSend, s.Mine(100, i), pair}}));
    } else {
      in_order.push_back(s.Empty(100));
      works.push_back(world.SendRecv({{P2POp::Kind::kRecv, in_order.back(), pair}}));
    }
  }
  for (const WorkPtr& work : works) s.Done(work, "messages in order");
  for (size_t i = 0; i < in_order.size(); ++i) {
    complaints.ExpectEqual(in_order[i], s.Theirs(pair, 100, i), "messages in order");
  }
}

namespace {

// What the k-th message of a channel from `rank` holds; sizes differ, so that a mix-up shows.
at::Tensor Message(const Scope& s, int rank, int channel, int k) {
  return s.Theirs(rank, 3000 + 70000 * (k % 2) + 10 * channel, 2 * k + channel);
}

}  // namespace

void CheckChannels(Communicator& world, at::Device device, Complaints& complaints) {
  const Scope s{world, at::kFloat, device, complaints};
  complaints.ExpectOk(world.OpenChannels(), "OpenChannels");
  complaints.ExpectOk(world.OpenChannels(), "OpenChannels again");
  const int me = world.rank(), pair = world.size() == 1 ? 0 : me ^ 1;
  if (pair >= world.size()) return;
  std::vector<WorkPtr> works;
  std::vector<at::Tensor> received[kNumP2PChannels];
  const auto send = [&](int channel, int k) {
    works.push_back(
        world.SendRecv({{P2POp::Kind::kSend, Message(s, me, channel, k), pair, channel}}));
  };
  const auto receive = [&](int channel, int k) {
    received[channel].push_back(at::full_like(Message(s, pair, channel, k), 77));
    works.push_back(
        world.SendRecv({{P2POp::Kind::kRecv, received[channel].back(), pair, channel}}));
  };
  // The lower rank sends on channel 0 what its neighbour receives behind all of channel 1, and the
  // other way round for what the neighbour sends. (To itself a rank sends and receives in a batch.)
  const bool lower = me <= pair;
  const int num_messages = me == pair ? 0 : 8;
  for (int k = 0; k < num_messages; ++k) lower ? send(0, k) : receive(1, k);
  for (int k = 0; k < num_messages; ++k) lower ? send(1, k) : receive(0, k);
  for (int k = 0; k < num_messages; ++k) lower ? receive(1, k) : send(0, k);
  for (int k = 0; k < num_messages; ++k) lower ? receive(0, k) : send(1, k);
  for (size_t i = works.size(); i-- > 0;) s.Done(works[i], "message of a channel");
  for (int channel = 0; channel < kNumP2PChannels; ++channel) {
    for (int k = 0; k < num_messages; ++k) {
      complaints.ExpectEqual(received[channel][k], Message(s, pair, channel, k),
                             absl::StrCat("channel ", channel, ", message ", k));
    }
  }
  // Both channels in one batch, in another order on either side.
  const at::Tensor first = at::full_like(Message(s, pair, 0, 0), 77),
                   second = at::full_like(Message(s, pair, 1, 0), 77);
  std::vector<P2POp> batch = {{P2POp::Kind::kSend, Message(s, me, 0, 0), pair, 0},
                              {P2POp::Kind::kRecv, second, pair, 1},
                              {P2POp::Kind::kSend, Message(s, me, 1, 0), pair, 1},
                              {P2POp::Kind::kRecv, first, pair, 0}};
  if (!lower) std::reverse(batch.begin(), batch.end());
  s.Done(world.SendRecv(batch), "both channels in a batch");
  complaints.ExpectEqual(first, Message(s, pair, 0, 0), "both channels in a batch: channel 0");
  complaints.ExpectEqual(second, Message(s, pair, 1, 0), "both channels in a batch: channel 1");
}

void CheckPending(Communicator& world, at::Device device, Complaints& complaints) {
  const Scope s{world, at::kFloat, device, complaints};
  const int n = world.size();
  std::vector<at::Tensor> tensors, gathered;
  std::vector<WorkPtr> works;
  for (int i = 0; i < 12; ++i) {
    const int64_t size = 1 + 3000 * (i % 4);
    tensors.push_back(s.Mine(size, i));
    works.push_back(world.AllReduce(tensors.back(), ReduceOp::kSum));
    gathered.push_back(s.Empty(n));
    works.push_back(world.AllGather(gathered.back(), s.Mine(1, i)));
    s.world.AllReduce(s.Mine(10), ReduceOp::kMax);  // its handle is dropped; it runs all the same
  }
  for (size_t i = works.size(); i-- > 0;) {
    s.Done(works[i], "pending operation");
    complaints.Expect(works[i]->IsDone(), "IsDone after Wait");
    s.Done(works[i], "a second Wait");
  }
  for (int i = 0; i < 12; ++i) {
    complaints.ExpectEqual(tensors[i],
                           Reduced(n, tensors[i].numel(), i, ReduceOp::kSum, at::kFloat, device),
                           "pending all_reduce");
    for (int rank = 0; rank < n; ++rank) {
      complaints.ExpectEqual(gathered[i][rank], s.Theirs(rank, 1, i), "pending all_gather");
    }
  }
}

void CheckSplit(Communicator& world, at::Device device, Complaints& complaints) {
  const int n = world.size(), me = world.rank();
  const auto check = [&](const absl::StatusOr<CommunicatorPtr>& group,
                         const std::vector<int>& members, const std::string& what) {
    complaints.ExpectOk(group.status(), what);
    if (!group.ok()) return;
    const int index = IndexOf(members, me);
    complaints.Expect((*group == nullptr) == (index < 0), what + ": members only");
    if (*group == nullptr) return;
    complaints.Expect((*group)->rank() == index && (*group)->ranks() == members,
                      what + ": ranks in the given order");
    complaints.Expect((*group)->name() == what, what + ": name");
    at::Tensor sum = at::full({3}, 1 << me, at::TensorOptions().dtype(at::kLong).device(device));
    complaints.ExpectOk((*group)->AllReduce(sum, ReduceOp::kSum)->Wait(), what);
    int64_t want = 0;
    for (int member : members) want += 1 << member;
    complaints.ExpectEqual(sum, at::full({3}, want, at::kLong), what);
    const at::Tensor order = at::empty({static_cast<int64_t>(members.size())}, sum.options());
    const at::Tensor mine = at::full({1}, me, sum.options());
    complaints.ExpectOk((*group)->AllGather(order, mine)->Wait(), what + " gather");
    for (size_t i = 0; i < members.size(); ++i) {
      complaints.Expect(order[i].item<int64_t>() == members[i], what + ": group order");
    }
  };
  // Each rank names its own half only, as with colours.
  std::vector<int> half;
  for (int rank = me % 2; rank < n; rank += 2) half.push_back(rank);
  const auto halves = world.Split("halves", half);
  check(halves, half, "halves");
  // All name the same members; the others get nothing.
  std::vector<int> first((n + 1) / 2);
  std::iota(first.begin(), first.end(), 0);
  check(world.Split("first", first), first, "first");
  std::vector<int> reversed(n);
  std::iota(reversed.rbegin(), reversed.rend(), 0);
  check(world.Split("reversed", reversed), reversed, "reversed");
  // Equal to the world, used next to it.
  std::vector<int> all(n);
  std::iota(all.begin(), all.end(), 0);
  const auto same = world.Split("same", all);
  check(same, all, "same");
  check(world.Split("alone", {me}), {me}, "alone");
  // A split of a split, with operations on three groups under way at a time.
  if (halves.ok() && *halves != nullptr && same.ok()) {
    std::vector<int> members((*halves)->size());
    std::iota(members.rbegin(), members.rend(), 0);
    const auto nested = (*halves)->Split("nested", members);
    std::vector<int> global(half.rbegin(), half.rend());
    check(nested, global, "nested");
    at::Tensor a = at::ones({1000}, at::TensorOptions().device(device)), b = a.clone(),
               c = a.clone();
    const WorkPtr works[] = {world.AllReduce(a, ReduceOp::kSum),
                             (*halves)->AllReduce(b, ReduceOp::kSum),
                             (*same)->AllReduce(c, ReduceOp::kSum)};
    for (const WorkPtr& work : works) complaints.ExpectOk(work->Wait(), "three groups");
    complaints.ExpectEqual(a, at::full({1000}, n), "three groups: world");
    complaints.ExpectEqual(b, at::full({1000}, static_cast<int64_t>(half.size())),
                           "three groups: half");
    complaints.ExpectEqual(c, at::full({1000}, n), "three groups: same");
  }
  complaints.ExpectOk(world.Barrier()->Wait(), "barrier after split");
}

void CheckRepeatedBits(Communicator& world, at::Device device, Complaints& complaints) {
  const int n = world.size();
  // Values of many magnitudes: any change of order shows.
  const at::Tensor i = at::arange(9001, at::kDouble);
  const at::Tensor source = at::sin(i * (world.rank() + 1.7))
                                .mul(at::exp(at::cos(i * 3.1) * 12))
                                .to(at::kFloat)
                                .to(device);
  at::Tensor first, first_slice;
  for (int round = 0; round < 5; ++round) {
    at::Tensor sum = source.clone();
    complaints.ExpectOk(world.AllReduce(sum, ReduceOp::kSum)->Wait(), "all_reduce");
    const at::Tensor input = source.narrow(0, 0, 9001 / n * n).contiguous();
    const at::Tensor slice = at::empty({9001 / n}, source.options());
    complaints.ExpectOk(world.ReduceScatter(slice, input, ReduceOp::kSum)->Wait(), "scatter");
    if (round == 0) first = sum, first_slice = slice;
    complaints.ExpectEqual(sum, first, "all_reduce: the same bits every time");
    complaints.ExpectEqual(slice, first_slice, "reduce_scatter: the same bits every time");
    const at::Tensor all = at::empty({9001 * n}, source.options());
    complaints.ExpectOk(world.AllGather(all, sum)->Wait(), "all_gather");
    for (int rank = 0; rank < n; ++rank) {
      complaints.ExpectEqual(all.narrow(0, 9001 * rank, 9001), sum,
                             "all_reduce: the same bits on every rank");
    }
  }
}

void CheckRefusals(Communicator& world, at::Device device, Complaints& complaints) {
  const at::Tensor a = at::ones({3}, at::TensorOptions().device(device));
  (void)world.Barrier()->Wait();  // all are formed before one errs
  if (world.rank() != 0) {
    const absl::Status status = world.Barrier()->Wait();
    complaints.Expect(!status.ok(), "the others' next operation fails too");
    return;
  }
  const absl::Status wrong = world.AllGather(a, a.repeat({2}))->Wait();
  complaints.Expect(absl::IsInvalidArgument(wrong), "wrong size: " + wrong.ToString());
  complaints.Expect(absl::StrContains(wrong.message(), world.name()),
                    "the message names the group: " + wrong.ToString());
  const absl::Status after = world.Barrier()->Wait();
  complaints.Expect(after == wrong, "the first error stays: " + after.ToString());
}

}  // namespace muster
