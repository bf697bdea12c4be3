#include "worker/parallel/rng.h"

#include <algorithm>
#include <exception>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/status.h"

namespace muster {
namespace {

// Offsets of reference 3. The tracker's own constants, not tunable: a checkpoint's states rely on
// them.
constexpr uint64_t kModelParallelOffset = 2718;
constexpr uint64_t kExpertParallelOffset = 1024;

absl::StatusOr<at::Generator> NewGenerator(uint64_t seed, bool cuda) {
  if (!cuda) return at::detail::createCPUGenerator(seed);
  try {
    // Through the hooks, so that the CPU build links no CUDA library.
    at::Generator generator =
        at::globalContext().getAcceleratorHooksInterface(c10::kCUDA).getNewGenerator(-1);
    generator.set_current_seed(seed);
    return generator;
  } catch (const std::exception& e) {
    return absl::UnavailableError(
        absl::StrCat("cannot create a CUDA random generator: ", e.what(),
                     "; use resources.device=cpu or a trainer built with MUSTER_CUDA"));
  }
}

}  // namespace

absl::StatusOr<RngTracker> RngTracker::Create(int64_t seed, const RngCoordinates& where,
                                              bool data_parallel_random_init, bool cuda) {
  if (seed <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("training.seed=", seed, ": must be a positive integer"));
  }
  const uint64_t base = static_cast<uint64_t>(seed) + 100 * where.pp_rank +
                        (data_parallel_random_init ? 10 * where.dp_rank : 0);
  RngTracker tracker;
  tracker.cuda_ = cuda;
  // Megatron's default generator is outside its tracker, so it may share the seed of
  // data-parallel-rng.
  ASSIGN_OR_RETURN(at::Generator generator, NewGenerator(base, cuda));
  tracker.generators_.emplace(kDefaultRng, std::move(generator));
  RETURN_IF_ERROR(tracker.Add(kDataParallelRng, base));
  RETURN_IF_ERROR(tracker.Add(kModelParallelRng, base + kModelParallelOffset + where.tp_rank));
  RETURN_IF_ERROR(tracker.Add(kExpertParallelRng,
                              base + kExpertParallelOffset + 100 * where.ep_rank + where.etp_rank));
  return tracker;
}

absl::Status RngTracker::Add(const std::string& name, uint64_t seed) {
  if (generators_.contains(name)) {
    return absl::InvalidArgumentError(
        absl::StrCat("random region '", name, "' exists already; region names must differ"));
  }
  for (const auto& [other, used] : seeds_) {
    if (used == seed) {
      return absl::InvalidArgumentError(
          absl::StrCat("random region '", name, "' has seed ", seed, ", as '", other,
                       "' has; regions must have different seeds: change training.seed"));
    }
  }
  ASSIGN_OR_RETURN(at::Generator generator, NewGenerator(seed, cuda_));
  generators_.emplace(name, std::move(generator));
  seeds_.emplace(name, seed);
  return absl::OkStatus();
}

absl::StatusOr<at::Generator> RngTracker::Get(const std::string& name) const {
  const auto found = generators_.find(name);
  if (found != generators_.end()) return found->second;
  return absl::NotFoundError(absl::StrCat(
      "no random region '", name, "'; there are ",
      absl::StrJoin(generators_, ", ",
                    [](std::string* out, const auto& entry) { out->append(entry.first); })));
}

at::Generator RngTracker::Default() const { return generators_.at(kDefaultRng); }

at::Generator RngTracker::ModelParallel() const { return generators_.at(kModelParallelRng); }

std::vector<at::Generator> RngTracker::Generators() const {
  std::vector<at::Generator> regions;
  for (const auto& [name, generator] : generators_) regions.push_back(generator);
  return regions;
}

std::map<std::string, std::string> RngTracker::SaveState() const {
  std::map<std::string, std::string> states;
  for (const auto& [name, generator] : generators_) {
    const at::Tensor state = generator.get_state().contiguous();  // uint8, on the host
    states[name].assign(reinterpret_cast<const char*>(state.const_data_ptr<uint8_t>()),
                        static_cast<size_t>(state.numel()));
  }
  return states;
}

absl::Status RngTracker::LoadState(const std::map<std::string, std::string>& state) {
  // Checked before anything changes: a half-loaded tracker would be worse than an error.
  for (const auto& [name, generator] : generators_) {
    if (!state.contains(name)) {
      return absl::InvalidArgumentError(
          absl::StrCat("random states lack region '", name, "'; was another version's loaded?"));
    }
  }
  for (const auto& [name, bytes] : state) {
    ASSIGN_OR_RETURN(at::Generator generator, Get(name));
    const int64_t want = generator.get_state().numel();
    if (static_cast<int64_t>(bytes.size()) != want) {
      return absl::InvalidArgumentError(absl::StrCat("random state of region '", name, "' has ",
                                                     bytes.size(), " bytes; ", want, " expected"));
    }
  }
  for (const auto& [name, bytes] : state) {
    at::Tensor tensor = at::empty({static_cast<int64_t>(bytes.size())}, at::kByte);
    std::copy(bytes.begin(), bytes.end(), reinterpret_cast<char*>(tensor.data_ptr<uint8_t>()));
    at::Generator generator = generators_.at(name);
    try {
      generator.set_state(tensor);
    } catch (const std::exception& e) {
      return absl::InvalidArgumentError(
          absl::StrCat("random state of region '", name, "' is not valid: ", e.what()));
    }
  }
  return absl::OkStatus();
}

RngSnapshot::RngSnapshot(const std::vector<at::Generator>& regions) : regions_(regions) {
  states_.reserve(regions.size());
  for (const at::Generator& region : regions_) states_.push_back(region.get_state());
}

void RngSnapshot::Restore() const {
  for (size_t i = 0; i < regions_.size(); ++i) {
    at::Generator region = regions_[i];  // a handle
    region.set_state(states_[i]);
  }
}

}  // namespace muster
