#include "worker/train/trace_clock.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace muster {
namespace {

constexpr int kPings = 8;  // the first ones open the connection

// FNV-1a: the same in every process.
uint64_t Fingerprint(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  return hash;
}

std::string Contents(const char* path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// Every rank's values, rank by rank.
absl::StatusOr<std::vector<int64_t>> Gather(Communicator& world, c10::Device device,
                                            std::vector<int64_t> mine) {
  const int64_t count = static_cast<int64_t>(mine.size());
  const auto options = at::TensorOptions().dtype(at::kLong);
  const at::Tensor input = at::from_blob(mine.data(), {count}, at::kLong).to(device, at::kLong);
  at::Tensor output = at::empty({count * world.size()}, options.device(device));
  RETURN_IF_ERROR(Annotate(world.AllGather(output, input)->Wait(), "comparing the ranks' clocks"));
  const at::Tensor host = output.cpu();
  const int64_t* const data = host.const_data_ptr<int64_t>();
  return std::vector<int64_t>(data, data + host.numel());
}

// Ping-pong between rank 0 and `other`. The rest of the world does nothing, as often, so that the
// sequence numbers of the group stay the same on all ranks.
absl::StatusOr<ClockEstimate> Exchange(Communicator& world, c10::Device device, int other,
                                       const std::function<int64_t()>& now) {
  const bool asks = world.rank() == other, answers = world.rank() == 0;
  at::Tensor word = at::empty({1}, at::TensorOptions().dtype(at::kLong).device(device));
  const auto transfer = [&](P2POp::Kind kind) -> absl::Status {
    std::vector<P2POp> batch;
    if (asks || answers) batch.push_back({kind, word, asks ? 0 : other});
    RETURN_IF_ERROR(Annotate(world.SendRecv(batch)->Wait(), "comparing the ranks' clocks"));
    // Until it is here: on a GPU a wait only orders the stream.
    if (kind == P2POp::Kind::kRecv && !batch.empty()) word.item<int64_t>();
    return absl::OkStatus();
  };
  std::vector<ClockPing> pings;
  for (int i = 0; i < kPings; ++i) {
    ClockPing ping{.sent_ns = now()};
    word.fill_(ping.sent_ns);
    RETURN_IF_ERROR(transfer(answers ? P2POp::Kind::kRecv : P2POp::Kind::kSend));
    if (answers) word.fill_(now());
    RETURN_IF_ERROR(transfer(answers ? P2POp::Kind::kSend : P2POp::Kind::kRecv));
    ping.received_ns = now();
    if (!asks) continue;
    ping.answered_ns = word.item<int64_t>();
    pings.push_back(ping);
  }
  return asks ? EstimateOffset(pings) : ClockEstimate{};
}

}  // namespace

ClockEstimate EstimateOffset(absl::Span<const ClockPing> pings) {
  const ClockPing& best =
      *std::min_element(pings.begin(), pings.end(), [](const ClockPing& a, const ClockPing& b) {
        return a.received_ns - a.sent_ns < b.received_ns - b.sent_ns;
      });
  const int64_t middle = best.sent_ns + (best.received_ns - best.sent_ns) / 2;
  return {.at_ns = middle,
          .offset_ns = best.answered_ns - middle,
          .error_ns = (best.received_ns - best.sent_ns + 1) / 2};
}

int64_t ClockMap::ToReference(int64_t local_ns) const {
  if (last_.at_ns == first_.at_ns) return local_ns + first_.offset_ns;
  const double share = static_cast<double>(local_ns - first_.at_ns) /
                       static_cast<double>(last_.at_ns - first_.at_ns);
  const double drift = share * static_cast<double>(last_.offset_ns - first_.offset_ns);
  return local_ns + first_.offset_ns + std::llround(drift);
}

int64_t ClockMap::error_ns() const { return std::max(first_.error_ns, last_.error_ns); }

double ClockMap::drift_ns_per_s() const {
  if (last_.at_ns == first_.at_ns) return 0;
  return static_cast<double>(last_.offset_ns - first_.offset_ns) /
         static_cast<double>(last_.at_ns - first_.at_ns) * 1e9;
}

// A container may run in a time namespace of its own, whose monotonic clock is shifted.
std::string ClockName() {
  const std::string boot = Contents("/proc/sys/kernel/random/boot_id");
  if (boot.empty()) return "";
  return absl::StrCat(boot, Contents("/proc/self/timens_offsets"));
}

absl::StatusOr<ClockSync> SyncClocks(Communicator& world, c10::Device device,
                                     const std::string& clock_name,
                                     const std::function<int64_t()>& now) {
  // A rank without a name shares its clock with nobody.
  const std::string name =
      clock_name.empty() ? absl::StrCat("rank ", world.rank()) : absl::StrCat("clock ", clock_name);
  ASSIGN_OR_RETURN(const std::vector<int64_t> all,
                   Gather(world, device, {static_cast<int64_t>(Fingerprint(name)), now()}));
  std::map<int64_t, int> first_of;  // of each clock, the lowest rank
  for (int rank = 0; rank < world.size(); ++rank) first_of.try_emplace(all[2 * rank], rank);
  ClockSync sync{.reference_now_ns = all[1], .num_clocks = static_cast<int>(first_of.size())};
  const int mine = first_of.at(all[2 * world.rank()]);
  sync.shared = mine == 0;
  if (sync.num_clocks == 1) return sync;
  std::vector<int> others;
  for (const auto& [clock, rank] : first_of) {
    if (rank != 0) others.push_back(rank);
  }
  std::sort(others.begin(), others.end());
  for (const int other : others) {
    ASSIGN_OR_RETURN(const ClockEstimate estimate, Exchange(world, device, other, now));
    if (other == world.rank()) sync.estimate = estimate;
  }
  const ClockEstimate& own = sync.estimate;
  ASSIGN_OR_RETURN(const std::vector<int64_t> estimates,
                   Gather(world, device, {own.at_ns, own.offset_ns, own.error_ns}));
  sync.estimate = {.at_ns = estimates[3 * mine],
                   .offset_ns = estimates[3 * mine + 1],
                   .error_ns = estimates[3 * mine + 2]};
  return sync;
}

}  // namespace muster
