// Runs a whole job in one process: ranks as threads, each through RunTraining, each with a host
// that records what it is told and plays a script. Free of torch's headers: they are slow to
// compile.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/control/messages.h"
#include "common/runtime/clock.h"
#include "common/runtime/mutex.h"
#include "worker/train/trainer_host.h"

namespace muster {

class Communicator;
struct AttemptState;
class ProviderRegistry;

using Settings = std::vector<std::string>;  // "section.field=value", as --set takes them
// The later ones win.
Settings With(Settings settings, const Settings& more);
inline Settings operator+(Settings a, const Settings& b) { return With(std::move(a), b); }

// A temporary folder with a small data set of bytes ("data": counting sequences of uneven length,
// easy to learn) and room for checkpoints; removed at the end.
class TrainTestRoot {
 public:
  TrainTestRoot();
  ~TrainTestRoot();
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

  // A tiny GPT's spec (2 layers, hidden 16, sequence 16, global batch 8 as 2 a microbatch, 6
  // iterations, Adam, no dropout, no evaluation, no checkpoints) with `settings`
  // ("section.field=v").
  std::string Spec(const std::vector<std::string>& settings = {}) const;
  // Settings that save to and load from <path>/name.
  static constexpr char kNoInterval[] = "checkpoint.save_interval=1000";

 private:
  std::string path_;
};

// A rank's host. Steps are counted by the calls of TakeDirectives: one a step, from 1 on. Signals
// are asked for once a step, before it.
class ScriptedHost final : public TrainerHost {
 public:
  void Send(TrainerToAgent message) override;
  std::vector<Directive> TakeDirectives() override;
  std::vector<Directive> WaitForDirectives(int64_t epoch) override;
  bool ExitSignalReceived() override;
  absl::Status SendTracePiece(TracePieceMessage piece, absl::Duration limit) override;

  // The script, written before the run.
  std::map<int64_t, std::vector<Directive>> deliveries;    // step -> what arrives before its end
  std::vector<Directive> while_held;                       // once, to whoever waits for some
  std::optional<int64_t> signal_before_step;               // from this step on
  std::map<int64_t, std::function<void()>> before_end_of;  // step -> done before it is committed

  template <typename Message>
  std::vector<Message> All() const {
    std::vector<Message> found;
    for (const TrainerToAgent& message : messages) {
      if (const auto* wanted = std::get_if<Message>(&message)) found.push_back(*wanted);
    }
    return found;
  }

  std::vector<TrainerToAgent> messages;  // read after the run
  // Parts of traces, by directive; `whole` those whose last piece came.
  std::map<int64_t, std::string> traces;
  std::set<int64_t> whole_traces;

 private:
  Mutex mu_;
  int64_t step_ = 0;       // that TakeDirectives was called for last
  int64_t asked_for_ = 0;  // that ExitSignalReceived was called for last
};

struct RankRun {
  absl::Status status;
  int exit_code = 0;
  std::string reason;
  int64_t iteration = 0;
  bool yielded = false, helped = false;
  int64_t peak_memory_bytes = 0;  // of its tensors
  std::unique_ptr<ScriptedHost> host;
};

struct RunOptions {
  // rank, its host, before the run.
  std::function<void(int rank, ScriptedHost& host)> script = {};
  Clock* clock = nullptr;  // nullptr: the real one
  // model.forward_step=nan: GPT's, whose loss is NaN on this rank at this microbatch (from 1 on).
  // model.forward_step=drift: GPT's, which there adds 1/8 to an element of its last parameter.
  // model.forward_step=mean: GPT's, whose loss function returns a mean and no number of tokens.
  int nan_rank = 0;
  int64_t nan_microbatch = 0;
  // data.dataset_provider=short: this many samples of training and of validation data (0: none).
  int64_t short_samples = 0;
  int64_t short_valid_samples = 0;
  // Adds a rank's own providers.
  std::function<void(int rank, ProviderRegistry& providers)> providers = {};
  std::string job_id = "job-1";
  std::string node = "node-a";  // where all ranks run; each has a device of its own
  std::string examine_json;     // of the assignment
  int64_t directives_through = 0;
  std::string device = "cpu";  // "cuda:0", in tests that link CUDA
  // Of an epoch that goes on from another: what a rank (or helper, from world_size on) has kept.
  // Null: nothing is kept.
  std::function<AttemptState*(int rank)> kept = {};
  int64_t epoch = 1;
  int num_helpers = 0;
  int64_t ledger_through = 0;
  std::function<int(int rank)> buddy = {};  // who keeps copies of its snapshots; null: nobody
  // Stands before a rank's world: what it returns is used in its place.
  std::function<std::shared_ptr<Communicator>(int rank, std::shared_ptr<Communicator> world)> wrap =
      {};
};

// One rank's result for each of resources.world_size ranks. A rank that fails aborts the world.
std::vector<RankRun> RunJob(const std::string& spec_json, const RunOptions& options = {});

// The host of the rank that speaks for the job: the first one of the last pipeline stage. Every
// rank must have ended well, and no other may have reported a step or an evaluation.
const ScriptedHost& ReporterOf(const std::vector<RankRun>& ranks);
// The steps that a run reported.
std::vector<StepMessage> StepsOf(const std::vector<RankRun>& ranks);
std::vector<StepMessage> Train(const std::string& spec_json, const RunOptions& options = {});

std::vector<double> Losses(const std::vector<StepMessage>& steps);
std::vector<double> GradNorms(const std::vector<StepMessage>& steps);
std::vector<double> Scales(const std::vector<StepMessage>& steps);
std::vector<bool> Skipped(const std::vector<StepMessage>& steps);
// |a - b| <= tolerance * max(1, |b|), of losses and gradient norms.
void ExpectSameCurve(const std::vector<StepMessage>& a, const std::vector<StepMessage>& b,
                     double tolerance);

// Weights, optimizer and random states of a checkpoint: file name -> bytes. Without the spec and
// the manifest, which name folders and epochs.
std::map<std::string, std::string> TensorFiles(const std::string& checkpoint);

}  // namespace muster
