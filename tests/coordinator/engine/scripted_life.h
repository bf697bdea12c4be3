// A coordinator's core over a real journal in the engine's order (handle, write, then reply), with
// two nodes and a user who lead it through the lives of some jobs: all of it a fixed script, so
// that it can be run again with a crash at any write. Whoever gets no answer does what the real
// ones do: the user asks again with the same key, agents open a new stream and send again what was
// not acknowledged.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "coordinator/core/coordinator.h"
#include "coordinator/core/invariants.h"
#include "coordinator/engine/sqlite_journal.h"
#include "tests/coordinator/engine/temp_folder.h"
#include "tests/support/memory_journal.h"

namespace muster {

class ScriptedLife {
 public:
  ScriptedLife();
  // Before Run: the process dies at this write.
  void CrashAt(int64_t write, FaultyJournal::Moment moment);
  void Run();

  bool crashed() const { return num_restarts_ > 0; }
  int64_t num_writes() const { return faulty_->num_writes(); }
  const Coordinator& core() const { return *core_; }
  // The journal's whole ledger.
  std::vector<LedgerRow> Ledger();

 private:
  struct Node {
    RegisterAgent agent;
    StreamId stream = 0;  // 0: not connected
    int64_t next_batch = 1;
    std::deque<ReportBatch> unacknowledged;
  };

  void Open(const std::string& folder);
  // nullopt: the process died, and nobody heard of an outcome.
  std::optional<Outcome> Try(const Event& event);
  bool Write();
  void Restart();
  void Connect(Node* node);
  void SendUnacknowledged(Node* node);

  // Until there is an answer.
  Outcome Call(const Event& event);
  void Join(Node* node);
  void Tick();
  std::string Submit(const std::string& key, int world_size);
  void Request(const std::string& job, const std::string& reason);
  void Report(const std::string& job, int rank, const ReportBody& body);
  void ReportAll(const std::string& job, const ReportBody& body);
  void Step(const std::string& job, int64_t iteration);
  void Form(const std::string& job);

  std::deque<TempFolder> folders_;  // one a life
  std::unique_ptr<SqliteJournal> journal_;
  std::unique_ptr<FaultyJournal> faulty_;
  std::unique_ptr<Coordinator> core_;
  std::unique_ptr<InvariantChecker> checker_;
  DurableState written_;  // as of the last write that was answered
  FaultyJournal::Moment moment_ = FaultyJournal::Moment::kBefore;
  absl::Time now_ = absl::FromUnixSeconds(1'700'000'000);
  Node nodes_[2];
  StreamId next_stream_ = 1;
  int num_restarts_ = 0;
};

}  // namespace muster
