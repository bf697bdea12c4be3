#include "tests/sim/sim_cluster.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/sim_parts.h"

namespace muster {

SimCluster::SimCluster(const SimOptions& options) : options_(options), random_(options.seed) {
  CoordinatorOptions core;
  core.jobs.stop_limit = absl::Seconds(10);
  core.jobs.checkpoint_and_stop_limit = absl::Seconds(20);
  core.jobs.forming_limit = absl::Seconds(20);
  core.jobs.done_limit = absl::Seconds(20);
  core_ = std::make_unique<Coordinator>(core);
  for (int i = 0; i < options.num_agents; ++i) {
    auto agent = std::make_unique<Agent>();
    agent->node = absl::StrCat("n", i);
    agent->num_slots = 1 + Pick(2);
    agents_.push_back(std::move(agent));
  }
}

SimCluster::~SimCluster() = default;

void SimCluster::At(absl::Duration delay, std::function<void()> action) {
  timeline_.push({now_ + delay, next_order_++, std::move(action)});
}
bool SimCluster::Chance(double probability) { return random_() < probability * 4294967296.0; }
int SimCluster::Pick(int below) { return static_cast<int>(random_() % below); }
absl::Duration SimCluster::Delay() {
  return absl::Milliseconds(Chance(0.05) ? 50 + Pick(200) : 1 + Pick(10));
}

std::vector<std::string> SimCluster::Run() {
  for (int i = 0; i < options_.num_agents; ++i)
    At(absl::Milliseconds(Pick(3000)), [=, this] { Boot(i); });
  for (int i = 0; i < options_.num_jobs; ++i) {
    At(absl::Milliseconds(Pick(40'000)), [this] { SubmitSome(); });
  }
  std::function<void()> tick = [&] {
    CarryOut(core_->Tick(now_));
    Check();
    At(absl::Milliseconds(100), tick);
  };
  std::function<void()> fault = [&] {
    if (calm_) return;
    CauseFault();
    At(absl::Milliseconds(500 + Pick(6000)), fault);
  };
  std::function<void()> meddle = [&] {
    if (calm_) return;
    MeddleSome();
    At(absl::Milliseconds(500 + Pick(8000)), meddle);
  };
  At(absl::ZeroDuration(), tick);
  At(absl::Seconds(2), fault);
  At(absl::Seconds(3), meddle);
  At(options_.faults, [this] {
    calm_ = true;
    for (size_t i = 0; i < agents_.size(); ++i) {
      agents_[i]->cut_off_until = now_;
      if (!agents_[i]->up) Boot(static_cast<int>(i));
    }
  });
  while (!timeline_.empty() && wrong_.empty()) {
    Timed next = timeline_.top();
    if (next.time > start_ + options_.faults + options_.calm) break;
    timeline_.pop();
    now_ = next.time;
    next.action();
  }
  if (wrong_.empty()) Judge();
  tally_.stale_reports = core_->num_stale_reports();
  return wrong_;
}

// ---- the coordinator

Outcome SimCluster::Deliver(const Event& event) {
  ++tally_.events;
  Outcome outcome = core_->Handle(event, now_);
  Check();
  CarryOut(outcome.actions);
  return outcome;
}

void SimCluster::Check() {
  for (const std::string& fault : checker_.Check(*core_)) {
    wrong_.push_back(absl::StrCat(absl::FormatDuration(now_ - start_), ": ", fault));
  }
}

void SimCluster::CarryOut(const std::vector<Action>& actions) {
  for (const Action& action : actions) {
    if (const auto* send = std::get_if<SendToAgent>(&action)) {
      const int i = stream_agent_.at(send->stream);
      Agent& agent = *agents_[i];
      const absl::Time arrival = std::max(now_ + Delay(), agent.last_down);
      agent.last_down = arrival;
      At(arrival - now_, [this, i, stream = send->stream, message = send->message] {
        if (agents_[i]->stream == stream && now_ >= agents_[i]->cut_off_until) {
          OnMessage(i, stream, message);
        } else if (agents_[i]->stream == stream) {
          BreakStream(i, /*coordinator_learns=*/false);  // TCP gives up: nothing may be missing
        }
      });
    } else if (const auto* end = std::get_if<EndStream>(&action)) {
      const int i = stream_agent_.at(end->stream);
      At(Delay(), [this, i, stream = end->stream] {
        if (agents_[i]->stream == stream) BreakStream(i, false);
      });
    }
  }
}

// ---- agents

void SimCluster::Boot(int i) {
  Agent& agent = *agents_[i];
  if (agent.up) return;
  const std::string node = agent.node;
  const int slots = agent.num_slots, life = agent.life + 1;
  std::vector<AssignmentRef> past = std::move(agent.past);
  agent = Agent{.node = node, .num_slots = slots, .life = life, .up = true};
  agent.past = std::move(past);
  Register(i, life);
  At(absl::Milliseconds(500), [=, this] { Beat(i, life); });
}

void SimCluster::Register(int i, int life) {
  At(Delay(), [=, this] {
    Agent& agent = *agents_[i];
    if (agent.life != life || !agent.up) return;
    if (now_ < agent.cut_off_until) return Register(i, life);
    RegisterAgent request{.incarnation = agent.Incarnation(),
                          .node = agent.node,
                          .address = agent.node,
                          .num_cpus = 2};
    for (int s = 0; s < agent.num_slots; ++s) {
      request.workers.push_back({agent.Worker(s), "cpu", DeviceKind::kCpu, s});
    }
    const Outcome outcome = Deliver(request);
    if (Chance(0.2)) Deliver(request);  // repeated
    if (outcome.status.ok()) {
      Connect(i);
    } else if (outcome.status.code() == absl::StatusCode::kAborted) {
      CrashAgent(i);  // this life is over: all trainers end, then a new one begins
      Boot(i);
    } else {
      At(absl::Milliseconds(200), [=, this] { Register(i, life); });
    }
  });
}

void SimCluster::Connect(int i) {
  Agent& agent = *agents_[i];
  agent.stream = next_stream_++;
  stream_agent_[agent.stream] = i;
  agent.last_up = agent.last_down = now_;
  ToCoordinator(i, OpenStream{agent.Incarnation(), agent.stream});
}

void SimCluster::ToCoordinator(int i, Event event) {
  Agent& agent = *agents_[i];
  absl::Time arrival = std::max(now_ + Delay(), agent.last_up);
  // Now and then the order is not kept: what must not happen, and must be noticed.
  if (Chance(0.01) && !calm_) {
    arrival += absl::Milliseconds(30);
  } else {
    agent.last_up = arrival;
  }
  At(arrival - now_, [this, i, stream = agent.stream, event = std::move(event)] {
    Agent& sender = *agents_[i];
    if (now_ < sender.cut_off_until) {  // TCP gives up: nothing may be missing in between
      if (sender.stream == stream) BreakStream(i, /*coordinator_learns=*/false);
      return;
    }
    // What was under way on a broken stream may still arrive, or not.
    if (sender.stream != stream && Chance(0.7)) return;
    const Outcome outcome = Deliver(event);
    if (Chance(0.05) && !std::holds_alternative<OpenStream>(event)) {
      ++tally_.repeated;
      Deliver(event);
    }
    if (outcome.status.ok() || sender.stream != stream) return;
    ++tally_.refused;
    const bool over = std::holds_alternative<OpenStream>(event);
    BreakStream(i, true);
    if (over && sender.up) {
      CrashAgent(i);
      Boot(i);
    }
  });
}

void SimCluster::BreakStream(int i, bool coordinator_learns) {
  Agent& agent = *agents_[i];
  if (agent.stream == 0) return;
  ++tally_.broken_streams;
  const StreamId stream = agent.stream;
  agent.stream = 0;
  if (coordinator_learns) At(Delay(), [this, stream] { Deliver(CloseStream{stream}); });
  const int life = agent.life;
  At(absl::Milliseconds(50 + Pick(300)), [this, i, life] {
    Agent& later = *agents_[i];
    if (later.up && later.life == life && later.stream == 0) Connect(i);
  });
}

void SimCluster::CrashAgent(int i) {
  Agent& agent = *agents_[i];
  if (!agent.up) return;
  for (const auto& [worker, trainer] : agent.trainers) {
    WorldOf(trainer.assignment.job_id, trainer.assignment.epoch)
        .faulted.insert(trainer.assignment.rank);
    agent.past.push_back(trainer.assignment);
  }
  node_fault_[agent.node] = now_;
  agent.trainers.clear();  // their control sockets are gone
  agent.up = false;
  ++tally_.lost_agents;
  const StreamId stream = agent.stream;
  agent.stream = 0;
  if (stream != 0 && Chance(0.7)) At(Delay(), [this, stream] { Deliver(CloseStream{stream}); });
}

void SimCluster::Beat(int i, int life) {
  Agent& agent = *agents_[i];
  if (!agent.up || agent.life != life) return;
  if (agent.stream != 0) ToCoordinator(i, Heartbeat{agent.stream, ++agent.beats});
  At(absl::Milliseconds(500), [=, this] { Beat(i, life); });
}

void SimCluster::Report(int i, const AssignmentRef& from, ReportBody body) {
  Agent& agent = *agents_[i];
  const int64_t sequence = ++agent.sequence;
  agent.unacknowledged[sequence] = {{from, std::move(body)}};
  if (agent.stream != 0) {
    ToCoordinator(i, ReportBatch{agent.stream, sequence, agent.unacknowledged[sequence]});
  }
}

void SimCluster::SendUnacknowledged(int i) {
  Agent& agent = *agents_[i];
  for (const auto& [sequence, reports] : agent.unacknowledged) {
    ToCoordinator(i, ReportBatch{agent.stream, sequence, reports});
  }
}

void SimCluster::OnMessage(int i, StreamId stream, const AgentMessage& message) {
  Agent& agent = *agents_[i];
  if (const auto* welcome = std::get_if<WelcomeMessage>(&message)) {
    std::set<std::string> listed;
    for (const AssignmentRef& held : welcome->running) listed.insert(Key(held));
    std::vector<std::string> unlisted;
    for (const auto& [worker, trainer] : agent.trainers) {
      if (!listed.contains(Key(trainer.assignment))) unlisted.push_back(worker);
    }
    for (const std::string& worker : unlisted) KillTrainer(i, worker, 15);
    std::erase_if(agent.unacknowledged,
                  [&](const auto& entry) { return entry.first <= welcome->reports_through; });
    SendUnacknowledged(i);
  } else if (const auto* launch = std::get_if<LaunchMessage>(&message)) {
    Launch(i, *launch);
  } else if (const auto* id = std::get_if<UniqueIdBroadcast>(&message)) {
    for (auto& [worker, trainer] : agent.trainers) {
      if (trainer.assignment.job_id != id->job_id || trainer.assignment.epoch != id->epoch ||
          trainer.training) {
        continue;
      }
      trainer.training = true;
      Report(i, trainer.assignment, PhaseMessage{id->epoch, "training", ""});
    }
  } else if (const auto* directive = std::get_if<DirectiveBroadcast>(&message)) {
    World& world = WorldOf(directive->job_id, directive->epoch);
    world.kinds[directive->directive.number] = directive->directive.kind;
    for (const auto& [worker, trainer] : agent.trainers) {
      if (trainer.assignment.job_id == directive->job_id &&
          trainer.assignment.epoch == directive->epoch) {
        world.directives[trainer.assignment.rank].insert(directive->directive.number);
      }
    }
  } else if (const auto* abort = std::get_if<AbortBroadcast>(&message)) {
    WorldOf(abort->job_id, abort->epoch).over = true;
  } else if (const auto* stop = std::get_if<StopTrainerMessage>(&message)) {
    const auto found = agent.trainers.find(stop->worker);
    if (found != agent.trainers.end() && found->second.assignment.job_id == stop->job_id &&
        found->second.assignment.epoch == stop->epoch) {
      const int life = agent.life;
      const AssignmentRef assignment = found->second.assignment;
      At(absl::Milliseconds(Pick(1000)), [=, this] {
        Agent& later = *agents_[i];
        const auto still = later.trainers.find(assignment.worker);
        if (later.life == life && still != later.trainers.end() &&
            still->second.assignment == assignment) {
          KillTrainer(i, assignment.worker, 15);
        }
      });
    } else {
      for (const auto& held : core_->FindJob(stop->job_id)->ranks()) {
        if (held.worker != stop->worker) continue;
        const int rank = static_cast<int>(&held - core_->FindJob(stop->job_id)->ranks().data());
        const AssignmentRef unknown{stop->worker, stop->job_id, stop->epoch, rank};
        if (!agent.seen.insert(Key(unknown)).second) break;  // its end was reported
        Report(i, unknown, ExitedReport{.launch_error = "stopped before it was launched"});
      }
    }
  } else if (const auto* ack = std::get_if<AckMessage>(&message)) {
    std::erase_if(agent.unacknowledged,
                  [&](const auto& entry) { return entry.first <= ack->through; });
  }
}

}  // namespace muster
