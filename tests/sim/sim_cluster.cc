#include "tests/sim/sim_cluster.h"

#include <algorithm>
#include <utility>

namespace muster {
namespace {

CoordinatorOptions CoreOptions() {
  CoordinatorOptions core;
  core.jobs.stop_limit = absl::Seconds(10);
  core.jobs.checkpoint_and_stop_limit = absl::Seconds(20);
  core.max_waiting_jobs = 80;
  core.max_jobs = 120;
  return core;
}

SimCoordinatorHost::Outside Around(SimNetwork* network, SimChecks* checks) {
  return {
      .send = [network](StreamId stream,
                        const AgentMessage& message) { network->ToAgent(stream, message); },
      .end = [network](StreamId stream,
                       const absl::Status& status) { network->EndByCoordinator(stream, status); },
      .answer = [network](const WaitDone& done) { network->Answer(done); },
      .handled = [checks](const std::vector<Action>& actions) { checks->Handled(actions); },
      .written = [checks] { checks->Written(); },
      .restored = [checks] { checks->Restored(); },
      .died = [network] { network->CoordinatorDied(); },
  };
}

}  // namespace

SimCluster::SimCluster(const SimOptions& options)
    : options_(options),
      sim_(options.seed, options.trace),
      journal_(&sim_),
      network_(&sim_),
      trainers_(&sim_),
      agents_(&sim_, &network_, &trainers_),
      host_(&sim_, &journal_, CoreOptions(), Around(&network_, &checks_)),
      checks_(&sim_, CoreOptions(), options.num_nodes * options.max_slots),
      people_(&sim_, &network_, &checks_, options.people),
      faults_(&sim_, options.faults) {
  for (int i = 0; i < options.num_nodes; ++i) {
    agents_.Add(options.min_slots + sim_.Pick(options.max_slots - options.min_slots + 1));
  }
  people_.set_num_workers(agents_.num_workers());
  trainers_.set_launch_failures(options.faults.weights.launch_fails * 0.001);
  trainers_.set_step(options.shortest_step, options.longest_step);
  checks_.Connect(&host_, &journal_);
  agents_.Connect({.acknowledged = [this](const auto& reports) { checks_.Acknowledged(reports); }});
  network_.Connect({.post =
                        [this](Event event, SimCoordinatorHost::Done done) {
                          return host_.Post(std::move(event), std::move(done));
                        },
                    .beat = [this](const Heartbeat& heartbeat) { host_.Beat(heartbeat); },
                    .to_agent =
                        [this](int node, StreamId stream, const AgentMessage& message) {
                          agents_.OnMessage(node, stream, message);
                        },
                    .agent_lost_stream =
                        [this](int node, StreamId stream, const absl::Status& status) {
                          agents_.OnStreamLost(node, stream, status);
                        }});
  trainers_.Connect(
      {.started = [this](const SimRun& run, int64_t pid) { agents_.OnTrainerStarted(run, pid); },
       .said = [this](const SimRun& run,
                      const TrainerToAgent& message) { agents_.OnTrainerSaid(run, message); },
       .exited = [this](const SimRun& run,
                        const SimExit& exit) { agents_.OnTrainerExited(run, exit); }});
  faults_.Connect({.network = &network_,
                   .trainers = &trainers_,
                   .agents = &agents_,
                   .host = &host_,
                   .journal = &journal_,
                   .people = &people_,
                   .checks = &checks_});
}

SimCluster::~SimCluster() = default;

std::vector<std::string> SimCluster::Run() {
  host_.Start();
  if (options_.crash_at.has_value()) {
    host_.CrashAt(options_.crash_at->first, options_.crash_at->second);
  }
  for (int node = 0; node < agents_.size(); ++node) {
    sim_.At(sim_.Between(absl::ZeroDuration(), options_.boots), [=, this] { agents_.Boot(node); });
  }
  for (int i = 0; i < options_.num_jobs; ++i) {
    sim_.At(sim_.Between(absl::ZeroDuration(), options_.submits), [this] { people_.SubmitSome(); });
  }
  sim_.At(absl::Seconds(2), [this] { faults_.Start(); });
  if (options_.meddling) sim_.At(absl::Seconds(3), [this] { Meddle(); });
  sim_.At(options_.faulty, [this] {
    sim_.Trace("calm");
    calm_ = true;
    faults_.End();
  });
  if (options_.script) options_.script(*this);
  sim_.At(absl::ZeroDuration(), [this] { Tick(); });
  const absl::Duration end = options_.faulty + options_.calm;
  while (sim_.ok() && sim_.RunOne(end)) {
    if (!calm_ || sim_.steady() < next_look_) continue;
    next_look_ = sim_.steady() + absl::Seconds(1);
    if (Quiet()) break;
  }
  if (sim_.ok()) Judge();
  tally_.coordinator_lives = host_.lives();
  tally_.crashed_agents = agents_.tally().crashes;
  tally_.new_incarnations = agents_.tally().incarnations;
  tally_.broken_streams = network_.tally().broken_streams;
  tally_.repeated = network_.tally().repeated;
  tally_.refused = network_.tally().refused + static_cast<int>(host_.num_refused());
  tally_.actions = sim_.num_actions();
  tally_.steps = trainers_.num_steps();
  tally_.batches = host_.num_batches();
  tally_.writes = journal_.num_writes();
  tally_.faults = faults_.counts();
  if (host_.up()) tally_.stale_reports = host_.core().num_stale_reports();
  for (const auto& [key, world] : trainers_.worlds()) {
    tally_.longest_step_gap = std::max(tally_.longest_step_gap, world->longest_gap);
  }
  return sim_.wrong();
}

// Once in a while: a planned crash is followed by a restart, and somebody looks at a job.
void SimCluster::Tick() {
  if (!host_.up() && options_.crash_at.has_value()) {
    sim_.At(options_.away_after_crash, [this, lives = host_.lives()] {
      if (!host_.up() && host_.lives() == lives) host_.Start();
    });
  }
  if (host_.up() && !host_.holding() && !people_.jobs().empty()) {
    checks_.Observe(people_.jobs()[sim_.Pick(static_cast<int>(people_.jobs().size()))]);
  }
  sim_.At(absl::Milliseconds(300), [this] { Tick(); });
}

void SimCluster::Meddle() {
  if (calm_) return;
  const int node = sim_.Pick(agents_.size());
  people_.Meddle({agents_.WorkerName(node, sim_.Pick(agents_.num_slots(node)))});
  sim_.At(sim_.Between(absl::Milliseconds(500), absl::Seconds(8)), [this] { Meddle(); });
}

// All has ended and nothing is under way that could change that.
bool SimCluster::Quiet() const {
  if (!host_.up() || !people_.idle() || trainers_.num_running() > 0) return false;
  for (const auto& [sequence, job] : host_.core().jobs()) {
    if (!job->ended() || !job->released()) return false;
  }
  const Membership& membership = host_.core().membership();
  if (static_cast<int>(membership.workers().size()) != agents_.num_workers()) return false;
  for (const auto& [name, worker] : membership.workers()) {
    if (!membership.IsIdle(worker)) return false;
  }
  for (int node = 0; node < agents_.size(); ++node) {
    // A trainer that is dead to all others may not have been reaped yet.
    if (!agents_.AllAcknowledged(node) || !agents_.Running(node).empty()) return false;
  }
  return true;
}

}  // namespace muster
