// The people of a simulation: they submit, cancel, ask for checkpoints and evaluations, drain
// workers and read, now and then all at once. Unanswered calls are made again, as the CLI does.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/sim/sim_checks.h"
#include "tests/sim/sim_network.h"

namespace muster {

class SimPeople {
 public:
  struct Options {
    int max_world = 4;
    int min_iters = 5, max_iters = 45;
    int percent_spares = 20;
    // Jobs that recover from failures; the others end with the first one.
    int percent_recovering = 75;
  };
  SimPeople(Sim* sim, SimNetwork* network, SimChecks* checks, const Options& options)
      : sim_(sim), network_(network), checks_(checks), options_(options) {}

  // No job wants more, spares included.
  void set_num_workers(int num_workers) { num_workers_ = num_workers; }
  void SubmitSome();
  // A world of just this size.
  void Submit(int world_size, int train_iters);
  void Cancel(const std::string& job, CancelMode mode);
  void Direct(const std::string& job, Directive::Kind kind);
  void Drain(const std::string& worker, bool undo);
  // Many jobs, requests and cancellations at once; the jobs are cancelled again.
  void Flood(int num_calls);
  // Some request about some job.
  void Meddle(const std::vector<std::string>& workers);

  const std::vector<std::string>& jobs() const { return jobs_; }
  bool idle() const { return num_open_ == 0; }
  int num_calls() const { return num_calls_; }

 private:
  using Answered = std::function<void(const Outcome&)>;
  // Until there is an answer: UNAVAILABLE and RESOURCE_EXHAUSTED are none.
  void Insist(Event event, Answered answered);
  void SubmitSpec(const std::string& spec, const std::string& key,
                  std::function<void(const std::string& job_id)> then);

  Sim* const sim_;
  SimNetwork* const network_;
  SimChecks* const checks_;
  const Options options_;
  std::vector<std::string> jobs_;
  std::map<std::string, std::string> job_of_key_;
  std::set<std::string> draining_;  // workers with a call under way
  int num_workers_ = 1, next_key_ = 1, num_open_ = 0, num_calls_ = 0;
};

}  // namespace muster
