#include "tests/sim/sim_faults.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace muster {
namespace {

// From a fault to the last failure that it may cause: silence limits, re-adoption, a wait.
constexpr absl::Duration kAftermath = absl::Seconds(130);

}  // namespace

void SimFaults::Start() {
  if (options_.pause == absl::InfiniteDuration()) return;
  sim_->At(sim_->Between(options_.pause * 0.1, options_.pause * 1.9), [this] {
    if (over_) return;
    CauseOne();
    Start();
  });
}

void SimFaults::End() {
  over_ = true;
  cluster_.network->Heal();
  cluster_.network->Calm();
  cluster_.trainers->Calm();
  cluster_.journal->set_full(false);
  if (!cluster_.host->up()) cluster_.host->Start();
  cluster_.host->SetDisk(absl::OkStatus());
  for (int node = 0; node < cluster_.agents->size(); ++node) {
    cluster_.agents->SetSpillFull(node, false);
    cluster_.agents->Boot(node);
  }
}

void SimFaults::Note(const std::string& fault, int node, absl::Duration lasts) {
  ++counts_[fault];
  if (node < 0) {
    sim_->Trace("fault: ", fault, " for ", absl::FormatDuration(lasts));
    return;
  }
  sim_->Trace("fault: ", fault, " of n", node, " for ", absl::FormatDuration(lasts));
  absl::Duration& until = hit_until_[cluster_.agents->NodeName(node)];
  until = std::max(until, sim_->steady() + lasts + kAftermath);
}

bool SimFaults::Hit(const std::string& node, absl::Duration when) const {
  const auto hit = hit_until_.find(node);
  return hit != hit_until_.end() && hit->second >= when;
}

int SimFaults::count(const std::string& fault) const {
  const auto found = counts_.find(fault);
  return found == counts_.end() ? 0 : found->second;
}

void SimFaults::BringBack(absl::Duration away) {
  sim_->At(away, [this, lives = cluster_.host->lives()] {
    if (!cluster_.host->up() && cluster_.host->lives() == lives) cluster_.host->Start();
  });
}

void SimFaults::CrashCoordinator(absl::Duration away) {
  if (!cluster_.host->up()) return;
  Note("crash_coordinator", -1, away);
  cluster_.host->Crash();
  BringBack(away);
}

void SimFaults::LosePower(absl::Duration away) {
  if (!cluster_.host->up()) return;
  Note("lose_power", -1, away);
  cluster_.host->Crash();
  cluster_.journal->LosePower();
  cluster_.checks->LostPower();
  BringBack(away);
}

void SimFaults::CutAll(absl::Duration duration) {
  Note("cut_all", -1, duration);
  for (int node = 0; node < cluster_.agents->size(); ++node) {
    cluster_.network->Cut(node, sim_->steady() + duration);
    absl::Duration& until = hit_until_[cluster_.agents->NodeName(node)];
    until = std::max(until, sim_->steady() + duration + kAftermath);
  }
}

void SimFaults::FillDisk(absl::Duration duration) {
  if (cluster_.journal->full()) return;
  Note("disk_full", -1, duration);
  cluster_.journal->set_full(true);
  sim_->At(duration, [this] { cluster_.journal->set_full(false); });
}

void SimFaults::LowDisk(absl::Duration duration) {
  Note("disk_low", -1, duration);
  cluster_.host->SetDisk(absl::ResourceExhaustedError("the journal lives on its reserve"));
  sim_->At(duration, [this] { cluster_.host->SetDisk(absl::OkStatus()); });
}

void SimFaults::CauseOne() {
  const FaultWeights& w = options_.weights;
  SimAgents& agents = *cluster_.agents;
  SimNetwork& network = *cluster_.network;
  const int node = sim_->Pick(agents.size());
  const auto some = [this](absl::Duration longest) {
    return sim_->Between(absl::Milliseconds(100), longest);
  };
  struct Choice {
    int weight;
    std::function<void()> cause;
  };
  const std::vector<Choice> choices = {
      {w.break_stream,
       [&] {
         Note("break_stream", -1);
         network.Break(agents.stream(node), sim_->Chance(0.7));
       }},
      {w.crash_agent,
       [&] {
         Note("crash_agent", node);
         agents.Crash(node);
         sim_->At(some(absl::Seconds(8)), [this, node] { cluster_.agents->Boot(node); });
       }},
      {w.terminate_agent,
       [&] {
         Note("terminate_agent", node, absl::Seconds(40));
         agents.Terminate(node);
         // Whoever told it starts it again once it has left.
         sim_->At(absl::Seconds(40), [this, node] {
           cluster_.agents->Crash(node);
           cluster_.agents->Boot(node);
         });
       }},
      {w.freeze_agent,
       [&] {
         const absl::Duration lasts = some(absl::Seconds(20));
         Note("freeze_agent", node, lasts);
         agents.Freeze(node, lasts);
       }},
      {w.kill_trainer,
       [&] {
         Note("kill_trainer", -1);
         cluster_.trainers->Kill(cluster_.trainers->PickRunning(), sim_->Chance(0.5) ? 9 : 11);
       }},
      {w.freeze_trainer,
       [&] {
         const absl::Duration lasts = some(absl::Seconds(15));
         Note("freeze_trainer", -1, lasts);
         cluster_.trainers->Freeze(cluster_.trainers->PickRunning(), lasts);
       }},
      {w.cut_one,
       [&] {
         const absl::Duration lasts =
             some(sim_->Chance(0.7) ? absl::Seconds(3) : options_.longest_cut);
         Note("cut_one", node, lasts);
         network.Cut(node, sim_->steady() + lasts);
       }},
      {w.cut_all, [&] { CutAll(some(options_.longest_cut)); }},
      {w.crash_coordinator,
       [&] {
         CrashCoordinator(some(sim_->Chance(0.7) ? absl::Seconds(3) : options_.longest_away));
       }},
      {w.freeze_coordinator,
       [&] {
         const absl::Duration lasts = some(absl::Seconds(15));
         Note("freeze_coordinator", -1, lasts);
         cluster_.host->StandStill(lasts);
       }},
      {w.lose_power, [&] { LosePower(some(absl::Seconds(20))); }},
      {w.disk_full, [&] { FillDisk(some(absl::Seconds(10))); }},
      {w.disk_low, [&] { LowDisk(some(absl::Seconds(10))); }},
      {w.spill_full,
       [&] {
         Note("spill_full", -1);
         agents.SetSpillFull(node, true);
         sim_->At(some(absl::Seconds(60)),
                  [this, node] { cluster_.agents->SetSpillFull(node, false); });
       }},
      {w.jump_clock,
       [&] {
         Note("jump_clock", -1);
         cluster_.host->JumpClock(sim_->Between(-absl::Hours(2), absl::Hours(2)));
       }},
      {w.say_stale,
       [&] {
         Note("say_stale", -1);
         agents.SayStale(node);
       }},
      {w.flood,
       [&] {
         Note("flood", -1);
         cluster_.people->Flood(50 + sim_->Pick(400));
       }},
  };
  int total = 0;
  for (const Choice& choice : choices) total += choice.weight;
  if (total == 0) return;
  int chosen = sim_->Pick(total);
  for (const Choice& choice : choices) {
    chosen -= choice.weight;
    if (chosen < 0) return choice.cause();
  }
}

}  // namespace muster
