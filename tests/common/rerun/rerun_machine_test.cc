#include "common/rerun/rerun_machine.h"

#include <cmath>
#include <limits>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/rerun/replay_log.h"
#include "common/rerun/rerun_json.h"
#include "gtest/gtest.h"

namespace muster {
namespace {

// A job of some ranks whose data is 0, 1, 2, ... and whose every step makes one check: the result
// of run n (from 0 on) of the second iteration is the script's n-th value, where -1 is bad.
class TracedJob {
 public:
  struct Options {
    std::vector<std::vector<double>> results;  // by rank, by run of iteration 2
    bool fatal = true;
    double tolerance = 0;
    int64_t bad_iteration = 2;
    ErrorInjectorOptions injector;
    RerunMode mode = RerunMode::kValidateResults;
  };
  explicit TracedJob(const Options& options) : options_(options) {
    for (size_t rank = 0; rank < options_.results.size(); ++rank)
      ranks_.push_back(std::make_unique<Rank>(RerunOptions{
          .mode = options.mode,
          .rank = static_cast<int>(rank),
          .place = {"node-a", absl::StrCat("gpu", rank)},
          .injector = options.injector,
      }));
  }

  // "2: 1(x=1) 2(x=1) -> 3 (T,T,16)" of one iteration, the state and data of each of its passes.
  std::string Step() {
    std::vector<std::string> passes;
    for (const auto& rank : ranks_) rank->machine.SetCompleted(completed_);
    while (ShouldRun()) {
      double x = 0;
      for (size_t r = 0; r < ranks_.size(); ++r) {
        Rank& rank = *ranks_[r];
        x = *rank.log.Next([&]() -> absl::StatusOr<double> { return rank.next_x++; });
        double result = 100 + x;
        if (completed_ + 1 == options_.bad_iteration && !options_.results[r].empty()) {
          result = options_.results[r].front();
          options_.results[r].erase(options_.results[r].begin());
        }
        EXPECT_TRUE(rank.machine
                        .Validate({.message = "bad result",
                                   .result = result,
                                   .rejected = [](double v) { return v == -1 || v == 200; },
                                   .tolerance = options_.tolerance,
                                   .fatal = options_.fatal})
                        .ok());
      }
      passes.push_back(absl::StrCat(static_cast<int>(state()), "(x=", x, ")"));
    }
    const RerunExit exit = ranks_[0]->machine.ExitOf();
    for (const auto& rank : ranks_) EXPECT_EQ(rank->machine.ExitOf(), exit);
    if (!exit.exit) ++completed_;
    return absl::StrCat(absl::StrJoin(passes, " "), " -> ", static_cast<int>(state()), " (",
                        exit.checkpoint ? "T" : "F", ",", exit.exit ? "T" : "F", ",", exit.code,
                        ")");
  }

  // Stops at a checkpoint, which another process loads, on the places given (by rank).
  TracedJob Resume(const std::vector<RerunPlace>& places,
                   const std::vector<std::vector<double>>& results) const {
    Options options = options_;
    options.results = results;
    TracedJob job(options);
    job.completed_ = completed_;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      job.ranks_[r] = std::make_unique<Rank>(RerunOptions{.mode = options.mode,
                                                          .rank = static_cast<int>(r),
                                                          .place = places[r],
                                                          .injector = options.injector});
      job.ranks_[r]->next_x = static_cast<double>(completed_);
      const auto common = DecodeRerunCommon(EncodeRerunCommon(ranks_[r]->machine.common()));
      const auto mine = DecodeRerunRank(EncodeRerunRank(ranks_[r]->machine.rank_state()));
      EXPECT_TRUE(common.ok() && mine.ok()) << common.status() << mine.status();
      job.ranks_[r]->machine.Load(*common, *mine);
    }
    return job;
  }

  RerunState state() const { return ranks_[0]->machine.state(); }
  RerunMachine& machine(size_t rank) { return ranks_[rank]->machine; }

 private:
  struct Rank {
    explicit Rank(const RerunOptions& options) : machine(options) {}
    RerunMachine machine;
    ReplayLog<double> log;
    double next_x = 0;
  };

  bool ShouldRun() {
    std::array<int64_t, 4> sum{};
    for (const auto& rank : ranks_) {
      const auto flags = rank->machine.flags().ToArray();
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += flags[i];
    }
    bool run = false;
    for (const auto& rank : ranks_) {
      const auto decision = rank->machine.ShouldRun(RerunFlags::FromArray(sum));
      EXPECT_TRUE(decision.ok()) << decision.status();
      run = decision->run;
      if (decision->begin) rank->log.Advance();
      if (decision->restore) rank->log.Rewind();
    }
    return run;
  }

  Options options_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  int64_t completed_ = 0;
};

constexpr double kBad = -1;

TEST(RerunMachineTest, TracesG13_1) {
  struct Row {
    const char* name;
    TracedJob::Options options;
    const char* first;
    const char* second;
    const char* third;  // null: the job has left
  };
  const char* const kFirst = "1(x=0) -> 0 (F,F,0)";
  const char* const kThird = "1(x=2) -> 0 (F,F,0)";
  const Row rows[] = {
      {"good", {.results = {{1}}}, kFirst, "1(x=1) -> 0 (F,F,0)", kThird},
      {"bad then good, fatal",
       {.results = {{kBad, 1}}},
       kFirst,
       "1(x=1) 2(x=1) -> 2 (F,T,17)",
       nullptr},
      {"bad then good, not fatal",
       {.results = {{kBad, 1}}, .fatal = false},
       kFirst,
       "1(x=1) 2(x=1) -> 0 (F,F,0)",
       kThird},
      {"bad, same again, fatal",
       {.results = {{kBad, kBad}}},
       kFirst,
       "1(x=1) 2(x=1) -> 3 (T,T,16)",
       nullptr},
      {"bad, same again, not fatal",
       {.results = {{kBad, kBad}}, .fatal = false},
       kFirst,
       "1(x=1) 2(x=1) -> 0 (F,F,0)",
       kThird},
      {"200 then 201, tolerance 0.01",
       {.results = {{200, 201}}, .tolerance = 0.01},
       kFirst,
       "1(x=1) 2(x=1) -> 3 (T,T,16)",
       nullptr},
      {"200 then 201, no tolerance",
       {.results = {{200, 201}}},
       kFirst,
       "1(x=1) 2(x=1) -> 2 (F,T,17)",
       nullptr},
      {"bad in the first iteration of the job",
       {.results = {{kBad}}, .bad_iteration = 1},
       kFirst,
       "1(x=1) -> 0 (F,F,0)",
       kThird},
      {"injected transient error",
       {.results = {{1, 1}}, .injector = {.rate = 1, .type = InjectedError::kTransient}},
       kFirst,
       "1(x=1) 2(x=1) -> 2 (F,T,17)",
       nullptr},
      {"injected persistent error",
       {.results = {{1, 1}}, .injector = {.rate = 1, .type = InjectedError::kPersistent}},
       kFirst,
       "1(x=1) 2(x=1) -> 3 (T,T,16)",
       nullptr},
      {"injected correct result",
       {.results = {{1, 1}}, .injector = {.rate = 1, .type = InjectedError::kCorrectResult}},
       kFirst,
       "1(x=1) 2(x=1) -> 3 (T,T,16)",
       nullptr},
      {"one rank decides for all",
       {.results = {{1, 1}, {kBad, kBad}, {1, 1}}},
       kFirst,
       "1(x=1) 2(x=1) -> 3 (T,T,16)",
       nullptr},
      {"two ranks disagree: none asks for a checkpoint and one does",
       {.results = {{kBad, 1}, {kBad, kBad}}},
       kFirst,
       "1(x=1) 2(x=1) -> 3 (T,T,16)",
       nullptr},
      {"disabled",
       {.results = {{kBad}}, .fatal = false, .mode = RerunMode::kDisabled},
       kFirst,
       "1(x=1) -> 0 (F,F,0)",
       kThird},
      {"statistics: every step twice",
       {.results = {{kBad, 1}}, .mode = RerunMode::kReportDeterminismStats},
       "1(x=0) 2(x=0) -> 0 (F,F,0)",
       "1(x=1) 2(x=1) -> 0 (F,F,0)",
       "1(x=2) 2(x=2) -> 0 (F,F,0)"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(absl::StrCat("G13.1 ", row.name));
    TracedJob job(row.options);
    EXPECT_EQ(job.Step(), row.first);
    EXPECT_EQ(job.Step(), row.second);
    if (row.third != nullptr) {
      EXPECT_EQ(job.Step(), row.third);
    }
  }
}

TEST(RerunMachineTest, TracesG13_1AcrossACheckpoint) {
  const RerunPlace same{"node-a", "gpu0"}, other_device{"node-a", "gpu1"},
      other_node{"node-b", "gpu0"};
  struct Row {
    const char* name;
    RerunPlace place;
    double again;  // the result of the second rerun
    const char* trace;
    RerunFinding finding;
  };
  const Row rows[] = {
      {"same device", same, kBad, "4(x=1) -> 5 (F,T,16)", RerunFinding::kSamePlace},
      {"same device, another result", same, 1, "4(x=1) -> 5 (F,T,16)", RerunFinding::kSamePlace},
      {"other device, differs", other_device, 1, "4(x=1) -> 4 (F,T,17)",
       RerunFinding::kOtherPlaceDiffers},
      {"other device, equal", other_device, kBad, "4(x=1) -> 4 (F,T,17)",
       RerunFinding::kOtherPlaceAgrees},
      {"other node, differs", other_node, 1, "4(x=1) -> 4 (F,T,17)",
       RerunFinding::kOtherPlaceDiffers},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(absl::StrCat("G13.1 resume, ", row.name));
    TracedJob job({.results = {{kBad, kBad}}});
    job.Step();
    EXPECT_EQ(job.Step(), "1(x=1) 2(x=1) -> 3 (T,T,16)");
    TracedJob resumed = job.Resume({row.place}, {{row.again}});
    EXPECT_EQ(resumed.Step(), row.trace);
    EXPECT_EQ(resumed.machine(0).finding(), row.finding);
    EXPECT_EQ(resumed.machine(0).current_iteration(), 2);
  }
}

// A check that is not fatal asks for no checkpoint itself; where one exists (of another rank's
// fatal check), the step is accepted after its second rerun.
TEST(RerunMachineTest, ASecondRerunOfARejectionThatIsNotFatalGoesOn) {
  for (const double again : {kBad, 1.0}) {
    RerunMachine machine({.place = {"node-b", "gpu0"}});
    machine.Load({.state = RerunState::kWillRerunFromCheckpoint, .current_iteration = 2},
                 RerunRankState{.failed_call = ValidationCall{"bad result", 0, 0},
                                .initial_result = kBad,
                                .suspicious = {"node-a", "gpu0"}});
    machine.SetCompleted(1);
    EXPECT_TRUE(machine.ShouldRun({})->run);
    EXPECT_TRUE(machine.Validate({.message = "bad result", .result = again, .fatal = false}).ok());
    EXPECT_FALSE(machine.ShouldRun(machine.flags())->run);
    EXPECT_EQ(machine.state(), RerunState::kNotRunningYet);
    EXPECT_EQ(machine.ExitOf(), (RerunExit{}));
  }
}

TEST(RerunMachineTest, ContinueWinsOverCheckpoint) {
  RerunMachine machine({});
  machine.SetCompleted(1);
  ASSERT_TRUE(machine.ShouldRun({})->run);
  ASSERT_TRUE(machine.ShouldRun({.rerun = 1})->run);
  const RunDecision end = *machine.ShouldRun({.rerun = 2, .checkpoint = 1, .keep_going = 1});
  EXPECT_FALSE(end.run);
  EXPECT_FALSE(end.restore) << "the rerun's gradients count";
  EXPECT_EQ(machine.state(), RerunState::kNotRunningYet);
}

TEST(RerunMachineTest, WithOtherHardwareAtHandATransientErrorIsAcceptedUnlessARankRepeats) {
  const auto negative = [](double value) { return value < 0; };
  struct Row {
    const char* name;
    double again;
    RerunFlags others;
    RerunState state;
  };
  const Row rows[] = {
      {"good the second time", 1, {}, RerunState::kNotRunningYet},
      {"bad in another way", -2, {}, RerunState::kRerunningInPlace},
      {"another rank repeats",
       1,
       {.rerun = 1, .checkpoint = 1},
       RerunState::kWillRerunFromCheckpoint},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    RerunMachine machine({.accept_transient = true});
    machine.SetCompleted(4);
    ASSERT_TRUE(machine.ShouldRun({})->run);
    ASSERT_TRUE(machine.Validate({.message = "m", .result = -1, .rejected = negative}).ok());
    ASSERT_TRUE(machine.ShouldRun(machine.flags())->run);
    ASSERT_TRUE(machine.Validate({.message = "m", .result = row.again, .rejected = negative}).ok());
    RerunFlags sum = machine.flags();
    sum.checkpoint += row.others.checkpoint;
    EXPECT_FALSE(machine.ShouldRun(sum)->run);
    EXPECT_EQ(machine.state(), row.state);
  }
}

TEST(RerunMachineTest, AnAcceptedIterationIsNotLookedAt) {
  RerunMachine machine({});
  machine.Accept(5);
  const ResultCheck bad{.message = "m", .result = -1, .rejected = [](double) { return true; }};
  for (const int64_t completed : {4, 5}) {
    machine.SetCompleted(completed);
    ASSERT_TRUE(machine.ShouldRun({})->run);
    ASSERT_TRUE(machine.Validate(bad).ok());
    EXPECT_EQ(machine.flags().rerun, completed == 4 ? 0 : 1);
    machine.Forget();
  }
}

TEST(RerunMachineTest, AfterComingBackToTheSameDeviceOnlyAnExitFollows) {
  TracedJob job({.results = {{kBad, kBad}}});
  job.Step();
  job.Step();
  TracedJob resumed = job.Resume({{"node-a", "gpu0"}}, {{kBad}});
  resumed.Step();
  EXPECT_EQ(resumed.machine(0).ShouldRun({}).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(RerunMachineTest, AnInjectedErrorShowsItsKindAfterTheCheckpoint) {
  for (const auto& [type, finding] :
       {std::pair(InjectedError::kPersistent, RerunFinding::kOtherPlaceDiffers),
        std::pair(InjectedError::kCorrectResult, RerunFinding::kOtherPlaceAgrees)}) {
    TracedJob job({.results = {{1, 1}}, .injector = {.rate = 1, .type = type}});
    job.Step();
    EXPECT_EQ(job.Step(), "1(x=1) 2(x=1) -> 3 (T,T,16)");
    TracedJob resumed = job.Resume({{"node-b", "gpu0"}}, {{1}});
    EXPECT_EQ(resumed.Step(), "4(x=1) -> 4 (F,T,17)");
    EXPECT_EQ(resumed.machine(0).finding(), finding);
    EXPECT_FALSE(resumed.machine(0).rank_state().injection_pending.has_value());
  }
}

TEST(RerunMachineTest, OneErrorIsInjectedInAboutSoManyChecks) {
  ErrorInjector injector({.rate = 8, .seed = 1234});
  int64_t injected = 0;
  for (int i = 0; i < 8000; ++i) {
    if (!injector.MaybeInject(3)) continue;
    ++injected;
    EXPECT_FALSE(injector.MaybeInject(3)) << "one is pending";
    EXPECT_EQ(injector.MaybeMiscompare(RerunState::kRerunningInPlace),
              std::numeric_limits<double>::infinity());
  }
  EXPECT_NEAR(static_cast<double>(injected), 1000, 120);
}

// The call that is compared is the one that was rejected: by message and by its number in the run.
TEST(RerunMachineTest, CallsAreToldApartByMessageAndNumber) {
  RerunMachine machine({.rank = 3});
  machine.SetCompleted(4);
  const auto check = [&](const char* message, double result) {
    return ResultCheck{
        .message = message, .result = result, .rejected = [](double v) { return v < 0; }};
  };
  ASSERT_TRUE(machine.ShouldRun({})->run);
  for (const double loss : {1.0, -2.0, -3.0})
    ASSERT_TRUE(machine.Validate(check("loss", loss)).ok());
  ASSERT_TRUE(machine.Validate(check("norm", -4)).ok());
  EXPECT_EQ(machine.failed_call(), (ValidationCall{"loss", 3, 1}));
  EXPECT_EQ(machine.initial_result(), -2);
  ASSERT_TRUE(machine.ShouldRun(machine.flags())->run);
  for (const double loss : {9.0, -2.0, 9.0})
    ASSERT_TRUE(machine.Validate(check("loss", loss)).ok());
  ASSERT_TRUE(machine.Validate(check("norm", 9)).ok());
  EXPECT_EQ(machine.flags(), (RerunFlags{.rerun = 1, .checkpoint = 1}));
  EXPECT_EQ(machine.last_result(), -2);
  const auto records = machine.TakeRecords();
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[0].status, RejectionStatus::kInitialRun);
  EXPECT_EQ(records[1].status, RejectionStatus::kFirstRerunReproducible);
  EXPECT_EQ(records[1].iteration, 5);
  EXPECT_EQ(records[1].rank, 3);
}

TEST(RerunMachineTest, RejectionsAreAskedForOnlyWhereTheyCount) {
  RerunMachine machine({});
  int asked = 0;
  const ResultCheck check{
      .message = "m", .result = 1, .rejected = [&](double) { return ++asked == 2; }};
  for (int64_t completed = 0; completed < 3; ++completed) {
    machine.SetCompleted(completed);
    ASSERT_TRUE(machine.ShouldRun({})->run);
    ASSERT_TRUE(machine.Validate(check).ok());
    const RerunFlags flags = machine.flags();
    if (machine.ShouldRun(flags)->run) {
      ASSERT_TRUE(machine.Validate(check).ok());
      break;
    }
  }
  EXPECT_EQ(asked, 2) << "not in the first step, not in a rerun";
}

TEST(RerunMachineTest, DisabledAFatalRejectionIsAnErrorAndAnotherIsNoted) {
  RerunMachine machine({.mode = RerunMode::kDisabled});
  machine.SetCompleted(0);
  EXPECT_TRUE(machine.ShouldRun({})->run);
  EXPECT_FALSE(machine.needs_flags());
  ResultCheck check{.message = "found NaN", .result = std::nan(""), .rejected = [](double v) {
                      return std::isnan(v);
                    }};
  EXPECT_EQ(machine.Validate(check).message(), "unexpected result nan (found NaN)");
  check.fatal = false;
  EXPECT_TRUE(machine.Validate(check).ok());
  EXPECT_EQ(machine.TakeRecords().size(), 2u);
  EXPECT_FALSE(machine.ShouldRun({})->run);
  EXPECT_EQ(machine.ExitOf(), (RerunExit{}));
}

TEST(RerunMachineTest, StatisticsAreReportedEverySecondIteration) {
  RerunMachine machine({.mode = RerunMode::kReportDeterminismStats});
  std::vector<bool> reports;
  for (int64_t completed = 0; completed < 4; ++completed) {
    machine.SetCompleted(completed);
    ASSERT_TRUE(machine.ShouldRun({})->run);
    ASSERT_TRUE(machine.Validate({.message = "loss", .result = 1}).ok());
    ASSERT_TRUE(machine.ShouldRun(machine.flags())->run);
    ASSERT_TRUE(machine.Validate({.message = "loss", .result = completed == 1 ? 1.001 : 1}).ok());
    reports.push_back(machine.ShouldRun({})->report_stats);
  }
  EXPECT_EQ(reports, (std::vector<bool>{false, true, false, true}));
  const auto stats = machine.TakeStats();
  EXPECT_EQ(stats.at("loss").Summarize().count, 4);
  EXPECT_EQ(stats.at("loss").Summarize().identical, 3);
}

TEST(RerunMachineTest, AnotherModeOrLayoutTakesNothingOver) {
  const RerunRankState rank{.failed_call = ValidationCall{"m", 0, 0}};
  RerunMachine disabled({.mode = RerunMode::kDisabled});
  disabled.Load({.state = RerunState::kWillRerunFromCheckpoint}, rank);
  EXPECT_EQ(disabled.state(), RerunState::kNotRunningYet);
  RerunMachine other({});
  other.Load({.mode = RerunMode::kReportDeterminismStats}, rank);
  EXPECT_FALSE(other.failed_call().has_value());
  other.Load({.state = RerunState::kWillRerunFromCheckpoint}, std::nullopt);
  EXPECT_EQ(other.state(), RerunState::kNotRunningYet);
}

}  // namespace
}  // namespace muster
