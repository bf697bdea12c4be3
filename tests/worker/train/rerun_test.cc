// Bad results in real training: each trace of reference 13.8, with ranks as threads. Steps that
// were accepted after a rerun give the bits of a run in which nothing was wrong.

#include <ATen/ops/abs.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sum.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/files/file_ops.h"
#include "common/rerun/examination.h"
#include "tests/worker/train/train_test_util.h"
#include "worker/provider/gpt_forward_step.h"
#include "worker/provider/provider.h"
#include "worker/train/attempt_state.h"

namespace muster {
namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

// What is wrong at which of a rank's forward passes, counted from 1 on over all runs of its
// process.
struct Faults {
  int rank = 0;
  std::set<int64_t> passes;
  double factor = 1000;  // on the chunk's output
  bool check = true;     // the provider's own: not above 10,000
  bool fatal = false;
  double tolerance = 0;
};

class FaultyForwardStep final : public ForwardStep {
 public:
  FaultyForwardStep(Faults faults, int rank) : faults_(std::move(faults)), rank_(rank) {}

  absl::StatusOr<ForwardStepResult> Run(DataIterator& data, ModelChunk& model,
                                        const at::Tensor& input) override {
    auto step = gpt_.Run(data, model, input);
    if (!step.ok()) return step;
    const bool faulty = faults_.rank == rank_ && faults_.passes.count(++pass_) > 0;
    if (faulty) step->output = at::mul(step->output, faults_.factor);
    if (faults_.check) step->checks.push_back(Check(step->output.detach().abs().sum()));
    return step;
  }

 private:
  ProviderCheck Check(at::Tensor result) const {
    return {.message = "the output is too large",
            .result = std::move(result),
            .rejected = [](double value) { return value > 10000; },
            .tolerance = faults_.tolerance,
            .fatal = faults_.fatal};
  }

  GptForwardStep gpt_;
  const Faults faults_;
  const int rank_;
  int64_t pass_ = 0;
};

struct Layout {
  const char* name;
  Settings settings;
  int faulty_rank;
  int64_t passes;  // of a rank in a step
};

class RerunTest : public testing::Test {
 protected:
  RunOptions With(const Faults& faults) const {
    RunOptions options;
    options.providers = [faults](int rank, ProviderRegistry& providers) {
      EXPECT_TRUE(
          providers.AddForwardStep("faulty", std::make_shared<FaultyForwardStep>(faults, rank))
              .ok());
    };
    return options;
  }
  std::string Spec(const Settings& settings) const {
    return root_.Spec(Settings{"plugin=/opt/muster/plugins/none.so", "model.forward_step=faulty",
                               "rerun.rerun_elsewhere=false", "training.train_iters=4",
                               "checkpoint.save_interval=1000"} +
                      settings);
  }
  Settings Saving(const std::string& folder) const {
    return {absl::StrCat("checkpoint.save=", root_ / folder),
            absl::StrCat("checkpoint.load=", root_ / folder)};
  }
  static std::vector<std::string> Events(const RankRun& run) {
    std::vector<std::string> texts;
    for (const EventMessage& event : run.host->All<EventMessage>()) {
      if (event.kind == "rerun") texts.push_back(event.text);
    }
    return texts;
  }
  // All ranks left with `code`, for the same reason.
  static void ExpectLeft(const std::vector<RankRun>& ranks, int code) {
    for (const RankRun& rank : ranks) {
      EXPECT_TRUE(rank.status.ok()) << rank.status;
      EXPECT_EQ(rank.exit_code, code);
      EXPECT_EQ(rank.reason, ranks[0].reason);
      EXPECT_EQ(rank.iteration, 1);
    }
  }
  TrainTestRoot root_;
};

const Settings kDropout = {"model.hidden_dropout=0.1", "model.attention_dropout=0.1"};

const Layout kLayouts[] = {
    {"one rank", {}, 0, 4},
    {"dp2", {"resources.world_size=2"}, 1, 2},
    {"tp2", {"resources.world_size=2", "parallel.tensor_model_parallel_size=2"}, 1, 4},
    {"pp2, the last stage",
     {"resources.world_size=2", "parallel.pipeline_model_parallel_size=2"},
     1,
     4},
    {"pp2, the first stage",
     {"resources.world_size=2", "parallel.pipeline_model_parallel_size=2"},
     0,
     4},
    {"distributed optimizer with overlap",
     {"resources.world_size=2", "parallel.use_distributed_optimizer=true",
      "parallel.overlap_grad_reduce=true", "parallel.overlap_param_gather=true"},
     0,
     2},
    {"fully sharded",
     {"resources.world_size=2", "parallel.use_megatron_fsdp=true",
      "parallel.data_parallel_sharding_strategy=optim_grads_params"},
     1,
     2},
    {"experts",
     {"resources.world_size=2", "parallel.expert_model_parallel_size=2", "model.num_experts=4",
      "model.moe_aux_loss_coeff=0.02", "model.moe_router_score_function=sigmoid",
      "model.moe_router_enable_expert_bias=true", "model.moe_router_bias_update_rate=0.05"},
     1,
     2},
};

TEST_F(RerunTest, AcceptedRerunsGiveTheBitsOfAnUndisturbedRun) {
  for (const Layout& layout : kLayouts) {
    SCOPED_TRACE(layout.name);
    const std::string spec = Spec(kDropout + layout.settings);
    const auto undisturbed = Train(spec, With(Faults{}));
    ASSERT_THAT(undisturbed, SizeIs(4));
    // The step's last pass, of iterations 2 and 3 (the rerun of 2 lies between them).
    const int64_t n = layout.passes;
    const auto ranks =
        RunJob(spec, With(Faults{.rank = layout.faulty_rank, .passes = {2 * n, 4 * n}}));
    const auto steps = StepsOf(ranks);
    ASSERT_THAT(steps, SizeIs(4));
    ExpectSameCurve(steps, undisturbed, 0);
    for (size_t i = 0; i < steps.size(); ++i) {
      EXPECT_EQ(steps[i].load_balancing_loss, undisturbed[i].load_balancing_loss);
    }
    const auto events = Events(ranks[static_cast<size_t>(layout.faulty_rank)]);
    ASSERT_THAT(events, SizeIs(4));
    EXPECT_THAT(events[0], AllOf(HasSubstr("iteration 2: the output is too large"),
                                 HasSubstr(absl::StrCat("on rank ", layout.faulty_rank)),
                                 HasSubstr("initial_run")));
    EXPECT_THAT(events[1], HasSubstr("first_rerun_not_reproducible"));
    EXPECT_THAT(events[2], HasSubstr("iteration 3"));
  }
}

TEST_F(RerunTest, BadThenGoodFatalLeavesWith17AndNoCheckpoint) {
  for (const Layout& layout : kLayouts) {
    SCOPED_TRACE(layout.name);
    const std::string folder = absl::StrCat("transient", &layout - kLayouts);
    const auto ranks = RunJob(
        Spec(layout.settings + Saving(folder)),
        With(Faults{.rank = layout.faulty_rank, .passes = {layout.passes + 1}, .fatal = true}));
    ExpectLeft(ranks, 17);
    EXPECT_THAT(ranks[0].reason,
                AllOf(HasSubstr("iteration 2: result validation failed: the output is too large"),
                      HasSubstr(absl::StrCat("on rank ", layout.faulty_rank, ", node-a gpu")),
                      HasSubstr("a transient error is likely")));
    EXPECT_THAT(ranks[0].host->All<CheckpointMessage>(), IsEmpty());
  }
}

TEST_F(RerunTest, BadAndTheSameAgainLeavesWith16AndIsExaminedAfterAResume) {
  for (const Layout& layout : kLayouts) {
    SCOPED_TRACE(layout.name);
    const std::string folder = absl::StrCat("persistent", &layout - kLayouts);
    const std::string spec = Spec(kDropout + layout.settings + Saving(folder));
    const int64_t n = layout.passes;
    const Faults faults{.rank = layout.faulty_rank, .passes = {n + 1, 2 * n + 1}, .fatal = true};
    const auto ranks = RunJob(spec, With(faults));
    ExpectLeft(ranks, 16);
    EXPECT_THAT(ranks[0].reason, HasSubstr("run again in place it is the same"));
    ASSERT_THAT(ranks[0].host->All<CheckpointMessage>(), SizeIs(1));
    EXPECT_EQ(ranks[0].host->All<CheckpointMessage>()[0].iteration, 1);

    const auto examine = [&](const char* node, const std::set<int64_t>& passes) {
      RunOptions options =
          With(Faults{.rank = layout.faulty_rank, .passes = passes, .fatal = true});
      options.node = node;
      return RunJob(spec, options);
    };
    const auto same_device = examine("node-a", {1});
    ExpectLeft(same_device, 16);
    EXPECT_THAT(same_device[0].reason, HasSubstr("came back to the same device"));
    EXPECT_THAT(same_device[0].host->All<CheckpointMessage>(), IsEmpty()) << "the old one serves";
    const auto agrees = examine("node-b", {1});
    ExpectLeft(agrees, 17);
    EXPECT_THAT(agrees[0].reason, HasSubstr("the data or the model to blame"));
    const auto differs = examine("node-b", {});
    ExpectLeft(differs, 17);
    EXPECT_THAT(differs[0].reason, HasSubstr("a persistent error of the first one is likely"));
  }
}

TEST_F(RerunTest, BadAndTheSameAgainButNotFatalGoesOn) {
  const auto ranks = RunJob(Spec({}), With(Faults{.passes = {5, 9}}));
  EXPECT_THAT(StepsOf(ranks), SizeIs(4));
  EXPECT_THAT(Events(ranks[0]),
              ElementsAre(HasSubstr("initial_run"), HasSubstr("first_rerun_reproducible")));
}

TEST_F(RerunTest, NearEnoughIsTheSameAgain) {
  // The second run of the faulty pass is another factor's: 1000 and 1001.
  class Near final : public ForwardStep {
   public:
    absl::StatusOr<ForwardStepResult> Run(DataIterator& data, ModelChunk& model,
                                          const at::Tensor& input) override {
      auto step = gpt_.Run(data, model, input);
      if (!step.ok()) return step;
      ++pass_;
      step->checks.push_back({.message = "200 or 201",
                              .result = at::full({1},
                                                 pass_ == 5   ? 200
                                                 : pass_ == 9 ? 201
                                                              : 0,
                                                 at::kDouble),
                              .rejected = [](double value) { return value >= 200; },
                              .tolerance = 0.01});
      return step;
    }
    GptForwardStep gpt_;
    int64_t pass_ = 0;
  };
  RunOptions options;
  options.providers = [](int, ProviderRegistry& providers) {
    EXPECT_TRUE(providers.AddForwardStep("faulty", std::make_shared<Near>()).ok());
  };
  ExpectLeft(RunJob(Spec({}), options), 16);
}

TEST_F(RerunTest, AFaultInTheFirstIterationIsNotLookedAt) {
  EXPECT_THAT(Train(Spec({}), With(Faults{.passes = {1}, .fatal = true})), SizeIs(4));
}

TEST_F(RerunTest, NanIsFatalOnceAndAgain) {
  const Settings dp2 = {"resources.world_size=2"};
  Faults faults{.rank = 1, .passes = {3}, .factor = std::nan(""), .check = false};
  const auto once = RunJob(Spec(dp2), With(faults));
  ExpectLeft(once, 17);
  EXPECT_THAT(once[0].reason,
              HasSubstr("found NaN in the local loss of a microbatch (nan) on rank 1"));
  faults.passes = {3, 5};
  const auto again = RunJob(Spec(dp2), With(faults));
  ExpectLeft(again, 16);
  EXPECT_THAT(again[0].reason, HasSubstr("checkpoint.save is not set"));
  faults.factor = std::numeric_limits<double>::infinity();
  const auto inf = RunJob(Spec(dp2), With(faults));
  for (const RankRun& rank : inf) EXPECT_EQ(rank.exit_code, 16) << rank.reason;
}

TEST_F(RerunTest, ASpikyLossIsRunAgainAndAccepted) {
  const Settings settings = {"rerun.check_for_spiky_loss=true", "training.train_iters=28"};
  const auto undisturbed = Train(Spec(settings), With(Faults{.check = false}));
  // 4 microbatches a step: 25 steps teach what is usual, but the first step is not looked at.
  const auto ranks = RunJob(Spec(settings), With(Faults{.passes = {4 * 26 + 2}, .check = false}));
  ExpectSameCurve(StepsOf(ranks), undisturbed, 0);
  EXPECT_THAT(Events(ranks[0]), ElementsAre(HasSubstr("iteration 27: spiky loss"),
                                            HasSubstr("first_rerun_not_reproducible")));
}

TEST_F(RerunTest, InjectedErrorsShowTheirKind) {
  struct Row {
    const char* type;
    int code, resumed;
    const char* reason;
  };
  const Row rows[] = {
      {"transient_error", 17, 0, ""},
      {"persistent_error", 16, 17, "a persistent error of the first one"},
      {"correct_result", 16, 17, "the data or the model to blame"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.type);
    const std::string spec = Spec(Settings{"resources.world_size=2", "rerun.error_injection_rate=1",
                                           absl::StrCat("rerun.error_injection_type=", row.type)} +
                                  Saving(row.type));
    RunOptions options = With(Faults{.check = false});
    ExpectLeft(RunJob(spec, options), row.code);
    if (row.resumed == 0) continue;
    options.node = "node-b";
    const auto resumed = RunJob(spec, options);
    ExpectLeft(resumed, row.resumed);
    EXPECT_THAT(resumed[0].reason, HasSubstr(row.reason));
  }
}

TEST_F(RerunTest, AnotherLayoutBeginsTheStepAnew) {
  const Settings saving = Saving("layout");
  ExpectLeft(RunJob(Spec(saving), With(Faults{.passes = {5, 9}, .fatal = true})), 16);
  const auto ranks = RunJob(Spec(saving + Settings{"resources.world_size=2"}), With(Faults{}));
  EXPECT_THAT(StepsOf(ranks), SizeIs(3));
  std::vector<std::string> notes;
  for (const EventMessage& event : ranks[0].host->All<EventMessage>()) notes.push_back(event.text);
  EXPECT_THAT(notes, testing::Contains(HasSubstr("in another layout it begins anew")));
}

TEST_F(RerunTest, StatisticsAreReportedEverySecondIteration) {
  const Settings dp2 = {"resources.world_size=2"};
  const auto plain = Train(Spec(kDropout + dp2), With(Faults{.check = false}));
  const auto ranks = RunJob(Spec(kDropout + dp2 + Settings{"rerun.mode=report_determinism_stats"}),
                            With(Faults{.check = false}));
  ExpectSameCurve(StepsOf(ranks), plain, 0);
  EXPECT_THAT(Events(ranks[1]), IsEmpty()) << "rank 0 speaks for all";
  std::vector<std::string> losses;
  for (const std::string& text : Events(ranks[0])) {
    if (absl::StrContains(text, "found NaN in the local loss")) losses.push_back(text);
  }
  // Two ranks with two microbatches each.
  EXPECT_THAT(
      losses,
      ElementsAre(
          AllOf(HasSubstr("after iteration 2"), HasSubstr("8 comparisons, 8 identical (100.0%)")),
          AllOf(HasSubstr("after iteration 4"), HasSubstr("16 comparisons, 16 identical"))));
}

TEST_F(RerunTest, IterationsThatTheTrackerFileShowsToBeBadAreSkipped) {
  const Settings settings = {
      absl::StrCat("rerun.result_rejected_tracker_filename=", root_ / "rejected")};
  RunOptions options = With(Faults{.passes = {5, 9}, .fatal = true});
  ExpectLeft(RunJob(Spec(settings), options), 16);
  const auto file = ReadWholeFile(root_ / "rejected");
  ASSERT_TRUE(file.ok()) << file.status();
  const std::vector<std::string> lines = absl::StrSplit(*file, '\n', absl::SkipEmpty());
  ASSERT_THAT(lines, SizeIs(2));
  EXPECT_THAT(
      lines,
      Each(AllOf(HasSubstr(" node=node-a device=gpu0 jobID=job-1 rank=0 iteration=2 status="),
                 HasSubstr(" message='the output is too large'"))));
  // Once is not enough.
  options.job_id = "job-2";
  ExpectLeft(RunJob(Spec(settings), options), 16);
  const auto steps = Train(Spec(settings), With(Faults{}));
  ASSERT_THAT(steps, SizeIs(3));
  EXPECT_EQ(steps[1].iteration, 3);
}

TEST_F(RerunTest, ATrackerFileThatCannotBeWrittenIsAnErrorAtTheStart) {
  const auto ranks =
      RunJob(Spec({"rerun.result_rejected_tracker_filename=/nowhere/rejected"}), With(Faults{}));
  EXPECT_THAT(std::string(ranks[0].status.message()),
              AllOf(HasSubstr("rerun.result_rejected_tracker_filename=/nowhere/rejected"),
                    HasSubstr("cannot be appended to")));
}

TEST_F(RerunTest, WithRerunsDisabledAFatalRejectionIsAnErrorOfAllRanks) {
  const auto ranks =
      RunJob(Spec({"rerun.mode=disabled", "resources.world_size=2"}),
             With(Faults{.rank = 1, .passes = {3}, .factor = std::nan(""), .check = false}));
  for (const RankRun& rank : ranks) {
    EXPECT_EQ(rank.status.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(rank.status.message()),
                AllOf(HasSubstr("iteration 2: result validation failed"), HasSubstr("found NaN"),
                      HasSubstr("on rank 1")));
  }
}

// ---- with a coordinator that finds other hardware: what it is told, and what its orders do.

class ElsewhereTest : public RerunTest {
 protected:
  // Epochs of one job of two ranks, in which each worker keeps what it has; a third one is a
  // helper. From its pass `from` on the worker `faulty_` computes wrongly (rank and worker are one,
  // unless `workers` says otherwise).
  std::vector<RankRun> Epoch(const std::vector<int>& workers, int64_t from,
                             const ExamineOrder* order = nullptr) {
    RunOptions options;
    options.epoch = ++epoch_;
    options.num_helpers = static_cast<int>(workers.size()) - 2;
    options.ledger_through = epoch_ == 1 ? 0 : 1;
    options.node = absl::StrCat("node of epoch ", epoch_);
    options.kept = [&, workers](int rank) { return &kept_[static_cast<size_t>(workers[rank])]; };
    if (order != nullptr) options.examine_json = EncodeExamineOrder(*order);
    options.script = script_;
    options.providers = [&, workers, from](int rank, ProviderRegistry& providers) {
      Faults faults{.rank = workers[rank] == faulty_ ? rank : -1, .fatal = true};
      for (int64_t pass = from; pass < from + 100; ++pass) faults.passes.insert(pass);
      EXPECT_TRUE(
          providers.AddForwardStep("faulty", std::make_shared<FaultyForwardStep>(faults, rank))
              .ok());
    };
    return RunJob(spec_, options);
  }
  // What the ranks told, each once.
  static std::vector<ExamineReport> ReportsOf(const std::vector<RankRun>& ranks) {
    std::vector<ExamineReport> reports;
    for (const RankRun& rank : ranks) {
      EXPECT_TRUE(rank.status.ok()) << rank.status;
      const auto messages = rank.host->All<ExamineMessage>();
      EXPECT_LE(messages.size(), 1u);
      if (messages.empty()) continue;
      EXPECT_EQ(messages[0].iteration, 2);
      const auto report = DecodeExamineReport(messages[0].json);
      EXPECT_TRUE(report.ok()) << report.status();
      reports.push_back(*report);
    }
    return reports;
  }
  static Directive LeaveWith(int exit_code) {
    return {.number = 1,
            .kind = Directive::Kind::kCheckpointAndExit,
            .reason = "no other device is here",
            .iteration = 2,
            .exit_code = exit_code};
  }
  static ExamineOrder OrderOf(ExamineOrder::Kind kind, const std::vector<ExamineReport>& reports) {
    ExamineOrder order{.kind = kind, .iteration = 2, .common_json = reports[0].common_json};
    for (const ExamineReport& report : reports) order.rank_jsons.push_back(report.rank_json);
    return order;
  }
  static std::vector<RunRecord> Runs(const std::vector<ExamineReport>& reports) {
    std::vector<RunRecord> runs;
    for (const ExamineReport& report : reports) runs.push_back(report.run);
    return runs;
  }

  std::vector<AttemptState> kept_ = std::vector<AttemptState>(3);
  std::string spec_;
  std::function<void(int rank, ScriptedHost& host)> script_;
  int faulty_ = 1;
  int64_t epoch_ = 0;
};

TEST_F(ElsewhereTest, AStepThatRepeatsIsHeldAndTheFingerprintsOfTwoPlacesConvictTheFaultyRank) {
  struct Row {
    const char* name;
    Settings settings;
    int64_t passes;
    // The workers of the ranks (and of a helper) in the second run, and afterwards.
    std::vector<int> elsewhere, after;
  };
  const Row rows[] = {
      {"dp2, a spare", {"resources.world_size=2"}, 2, {0, 2, 1}, {0, 2}},
      {"dp2, exchanged", {"resources.world_size=2"}, 2, {1, 0}, {2, 0, 1}},
      {"pp2, a spare on the last stage",
       {"resources.world_size=2", "parallel.pipeline_model_parallel_size=2"},
       4,
       {0, 2, 1},
       {0, 2}},
      {"tp2, a spare",
       {"resources.world_size=2", "parallel.tensor_model_parallel_size=2"},
       4,
       {0, 2, 1},
       {0, 2}},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    kept_ = std::vector<AttemptState>(3);
    epoch_ = 0;
    spec_ = Spec(kDropout + row.settings + Settings{"rerun.rerun_elsewhere=true"});
    const auto undisturbed = Train(spec_, With(Faults{}));
    const auto held = Epoch({0, 1}, row.passes + 1);
    const auto first = ReportsOf(held);
    ASSERT_EQ(first.size(), 2u);
    for (size_t r = 0; r < 2; ++r) {
      EXPECT_TRUE(held[r].yielded);
      EXPECT_EQ(first[r].stage, ExamineReport::Stage::kInPlace);
      EXPECT_FALSE(first[r].run.fingerprints.empty());
    }
    EXPECT_TRUE(first[1].followed && !first[1].differs);

    const ExamineOrder rerun = OrderOf(ExamineOrder::Kind::kRerun, first);
    const auto elsewhere = Epoch(row.elsewhere, 1, &rerun);
    const auto second = ReportsOf(elsewhere);
    ASSERT_EQ(second.size(), 2u);
    EXPECT_EQ(second[1].stage, ExamineReport::Stage::kElsewhere);
    EXPECT_TRUE(second[1].differs && !second[1].rejected_again);
    const Comparison comparison = CompareRuns(Runs(first), Runs(second));
    EXPECT_TRUE(comparison.comparable);
    std::set<int> convicted;
    for (const Difference& difference : comparison.convicted) convicted.insert(difference.rank);
    EXPECT_TRUE(convicted.contains(1)) << "the rank that the faulty worker had";
    // Exchanged, the fault shows at both.
    EXPECT_EQ(convicted.size(), row.elsewhere[1] == 0 ? 2u : 1u);

    // With the worker out, the step begins anew and nothing is lost.
    const ExamineOrder repeat{.kind = ExamineOrder::Kind::kRepeat, .iteration = 2};
    const auto end = Epoch(row.after, 1, &repeat);
    std::vector<StepMessage> steps = held[0].host->All<StepMessage>();
    if (steps.empty()) steps = held[1].host->All<StepMessage>();
    ASSERT_THAT(steps, SizeIs(1));
    for (const StepMessage& step : StepsOf(end)) {
      if (step.iteration > 1) steps.push_back(step);
    }
    ExpectSameCurve(steps, undisturbed, 0);
  }
}

TEST_F(ElsewhereTest, WhatIsTheSameEverywhereIsAcceptedOrEndsTheJobAsTheOrderSays) {
  spec_ = Spec(Settings{"resources.world_size=2", "rerun.rerun_elsewhere=true"} + Saving("held"));
  const auto first = ReportsOf(Epoch({0, 1}, 3));
  ASSERT_EQ(first.size(), 2u);
  const ExamineOrder accept{.kind = ExamineOrder::Kind::kAccept, .iteration = 2};
  // The fault stays: iteration 2 is taken as it is, the next one is held again.
  const auto accepted = Epoch({0, 1}, 1, &accept);
  EXPECT_TRUE(accepted[0].yielded);
  EXPECT_EQ(accepted[1].host->All<ExamineMessage>().at(0).iteration, 3);
  EXPECT_EQ(accepted[0].iteration, 2);
}

TEST_F(ElsewhereTest, TheDirectiveToLeaveIsObeyedAtTheStepThatIsHeldWithACheckpointThatContinues) {
  spec_ = Spec(Settings{"resources.world_size=2", "rerun.rerun_elsewhere=true"} + Saving("left"));
  const Directive leave = LeaveWith(16);
  script_ = [&](int, ScriptedHost& host) { host.while_held = {leave}; };
  const auto left = Epoch({0, 1}, 3);
  ExpectLeft(left, 16);
  EXPECT_FALSE(left[0].yielded);
  EXPECT_EQ(left[0].reason, leave.reason);
  ASSERT_THAT(left[0].host->All<CheckpointMessage>(), SizeIs(1));
  EXPECT_EQ(left[0].host->All<CheckpointMessage>()[0].iteration, 1);
  for (const RankRun& rank : left) {
    std::vector<std::string> phases;
    for (const PhaseMessage& message : rank.host->All<PhaseMessage>())
      phases.push_back(message.phase);
    EXPECT_THAT(phases, testing::IsSupersetOf({"yielded", "saving"})) << "held, then saved";
  }
  // Another job goes on with it, on other hardware; it comes back to the same, too.
  kept_ = std::vector<AttemptState>(3);
  epoch_ = 10;
  script_ = {};
  const auto resumed = ReportsOf(Epoch({0, 1}, 1000));
  ASSERT_EQ(resumed.size(), 2u);
  EXPECT_EQ(resumed[1].stage, ExamineReport::Stage::kElsewhere);
  EXPECT_TRUE(resumed[1].followed && resumed[1].differs);
  // With 17 nothing is saved.
  kept_ = std::vector<AttemptState>(3);
  script_ = [&](int, ScriptedHost& host) { host.while_held = {LeaveWith(17)}; };
  const auto failed = Epoch({0, 1}, 1000);
  ExpectLeft(failed, 17);
  EXPECT_THAT(failed[0].host->All<CheckpointMessage>(), IsEmpty());
}

TEST_F(ElsewhereTest, ADirectiveToLeaveWithAnotherStepIsNotObeyed) {
  spec_ = Spec(Settings{"resources.world_size=2", "rerun.rerun_elsewhere=true"} + Saving("other"));
  Directive other = LeaveWith(16);
  other.iteration = 3;
  script_ = [&](int, ScriptedHost& host) {
    host.deliveries[1] = {other};
    host.while_held = {other};
  };
  const auto held = Epoch({0, 1}, 3);
  EXPECT_TRUE(held[0].yielded);
  EXPECT_EQ(held[0].exit_code, 0);
  // Where the step comes out well, one that is about it is void.
  kept_ = std::vector<AttemptState>(3);
  epoch_ = 10;
  script_ = [&](int, ScriptedHost& host) { host.deliveries[2] = {LeaveWith(16)}; };
  const auto good = Epoch({0, 1}, 1000);
  EXPECT_FALSE(good[0].yielded);
  EXPECT_EQ(good[0].exit_code, 0);
  EXPECT_EQ(good[0].iteration, 4);
}

// It came with the step's agreement, as a rank had died before all could obey it.
TEST_F(ElsewhereTest, ADirectiveToLeaveThatIsHereAlreadyIsObeyed) {
  spec_ = Spec(Settings{"resources.world_size=2", "rerun.rerun_elsewhere=true"} + Saving("here"));
  script_ = [&](int, ScriptedHost& host) { host.deliveries[2] = {LeaveWith(16)}; };
  ExpectLeft(Epoch({0, 1}, 3), 16);
}

// What was agreed on at the end of a step that is held then is not lost.
TEST_F(ElsewhereTest, DirectivesOfAHeldStepAreActedOnWhenItIsCommitted) {
  spec_ = Spec(Settings{"resources.world_size=2", "rerun.rerun_elsewhere=true"} + Saving("asked"));
  const Directive save{1, Directive::Kind::kCheckpoint, "asked for"};
  script_ = [&](int, ScriptedHost& host) { host.deliveries[2] = {save}; };
  const auto held = Epoch({0, 1}, 3);
  ASSERT_TRUE(held[0].yielded);
  EXPECT_THAT(held[0].host->All<CheckpointMessage>(), IsEmpty());
  // The coordinator says again what no step has confirmed.
  script_ = [&](int, ScriptedHost& host) { host.deliveries[1] = {save}; };
  const ExamineOrder repeat{.kind = ExamineOrder::Kind::kRepeat, .iteration = 2};
  const auto end = Epoch({0, 2, 1}, 1000, &repeat);
  ASSERT_TRUE(end[0].status.ok()) << end[0].status;
  const auto checkpoints = end[0].host->All<CheckpointMessage>();
  ASSERT_FALSE(checkpoints.empty());
  EXPECT_EQ(checkpoints[0].iteration, 2);
}

// ---- what is usual is not learned anew by a process that takes a rank over.

class TakenOverTest : public RerunTest {
 protected:
  // Runs until a reform after `steps`, then goes on in `workers[0]` (ranks) with that at pass
  // `spike` of rank 0.
  std::vector<RankRun> GoOn(const std::string& spec, int64_t steps, int ranks,
                            const std::vector<int>& workers, int64_t spike) {
    RunOptions options = With(Faults{.check = false});
    options.kept = [&](int rank) { return &kept_[static_cast<size_t>(rank)]; };
    options.script = [&](int, ScriptedHost& host) {
      host.deliveries[steps] = {{1, Directive::Kind::kReform, "a rank moves"}};
    };
    for (const RankRun& run : RunJob(spec, options)) EXPECT_TRUE(run.yielded) << run.status;
    RunOptions next = With(Faults{.passes = {spike}, .check = false});
    next.kept = [&](int rank) {
      return &kept_[static_cast<size_t>(workers[static_cast<size_t>(rank)])];
    };
    next.epoch = 2;
    next.directives_through = 1;
    next.ledger_through = steps;
    next.num_helpers = static_cast<int>(workers.size()) - ranks;
    return RunJob(spec, next);
  }
  std::vector<AttemptState> kept_ = std::vector<AttemptState>(4);
};

TEST_F(TakenOverTest, LargestLossesComeAlongWithAMovedRank) {
  const auto ranks = GoOn(Spec({"rerun.check_for_spiky_loss=true", "training.train_iters=28"}), 26,
                          1, {2, 0}, /*spike=*/2);
  EXPECT_THAT(Events(ranks[0]), ElementsAre(HasSubstr("iteration 27: spiky loss"),
                                            HasSubstr("first_rerun_not_reproducible")));
}

TEST_F(TakenOverTest, LargestLossesOfAPeerServeWhereAProcessIsNew) {
  const auto ranks = GoOn(Spec({"rerun.check_for_spiky_loss=true", "training.train_iters=54",
                                "resources.world_size=2"}),
                          52, 2, {2, 1}, /*spike=*/1);
  EXPECT_THAT(Events(ranks[0]), ElementsAre(HasSubstr("iteration 53: spiky loss"),
                                            HasSubstr("first_rerun_not_reproducible")));
}

TEST_F(ElsewhereTest, ATransientFatalErrorIsAcceptedAndTold) {
  spec_ = Spec({"resources.world_size=2", "rerun.rerun_elsewhere=true"});
  const auto undisturbed = Train(spec_, With(Faults{}));
  const auto ranks = RunJob(spec_, With(Faults{.rank = 1, .passes = {3}, .fatal = true}));
  ExpectSameCurve(StepsOf(ranks), undisturbed, 0);
  const auto reports = ReportsOf(ranks);
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0].stage, ExamineReport::Stage::kTransient);
}

}  // namespace
}  // namespace muster
