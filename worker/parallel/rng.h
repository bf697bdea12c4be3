// RNG regions of reference 3: every random draw takes an explicit generator of a named region;
// torch's default generator is never touched (ranks as threads share it).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Generator.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace muster {

inline constexpr char kDefaultRng[] =
    "default-rng";  // S: dropout of tp-replicated regions, init of replicated weights
inline constexpr char kDataParallelRng[] = "data-parallel-rng";    // S
inline constexpr char kModelParallelRng[] = "model-parallel-rng";  // S + 2718 + tp_rank
inline constexpr char kExpertParallelRng[] =
    "expert-parallel-rng";  // S + 1024 + 100*ep_rank + etp_rank

struct RngCoordinates {
  int tp_rank = 0, pp_rank = 0, dp_rank = 0, ep_rank = 0, etp_rank = 0;
};

// One a rank. Not thread-safe (a rank is one thread).
class RngTracker {
 public:
  // seed > 0. S = seed + 100*pp_rank (+ 10*dp_rank with data_parallel_random_init). CPU or CUDA
  // generators by device.
  static absl::StatusOr<RngTracker> Create(int64_t seed, const RngCoordinates& where,
                                           bool data_parallel_random_init, bool cuda);
  // INVALID_ARGUMENT for a repeated name; a repeated seed value too, as Megatron's tracker.
  absl::Status Add(const std::string& name, uint64_t seed);
  // NOT_FOUND error for an unknown region.
  absl::StatusOr<at::Generator> Get(const std::string& name) const;
  at::Generator Default() const;
  at::Generator ModelParallel() const;
  // Of all regions there are by now, in the order of their names.
  std::vector<at::Generator> Generators() const;

  // All regions' states, for checkpoints and reruns: name -> opaque bytes.
  std::map<std::string, std::string> SaveState() const;
  absl::Status LoadState(const std::map<std::string, std::string>& state);

 private:
  std::map<std::string, at::Generator> generators_;
  std::map<std::string, uint64_t> seeds_;
  bool cuda_ = false;
};

// The states of some regions at one moment, to draw the same numbers again. A few kilobytes a
// region, on the host; no synchronisation with a GPU.
class RngSnapshot {
 public:
  explicit RngSnapshot(const std::vector<at::Generator>& regions);
  void Restore() const;

 private:
  std::vector<at::Generator> regions_;
  std::vector<at::Tensor> states_;
};

// Scope at whose end the regions are in the state that they had at its start.
class RngRestore {
 public:
  explicit RngRestore(const std::vector<at::Generator>& regions) : at_start_(regions) {}
  ~RngRestore() { at_start_.Restore(); }
  RngRestore(const RngRestore&) = delete;
  RngRestore& operator=(const RngRestore&) = delete;

 private:
  const RngSnapshot at_start_;
};

}  // namespace muster
