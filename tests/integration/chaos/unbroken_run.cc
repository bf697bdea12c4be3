#include "tests/integration/chaos/unbroken_run.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <functional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"

namespace muster {

using nlohmann::json;

const std::vector<ChaosLayout>& ChaosLayouts() {
  static const std::vector<ChaosLayout> layouts = {
      {"dp2", 2, json::object(), {1, 1, 1}},
      {"dp2, distributed optimizer",
       2,
       {{"use_distributed_optimizer", true},
        {"overlap_grad_reduce", true},
        {"overlap_param_gather", true}},
       {1, 1, 1}},
      {"pp2", 2, {{"pipeline_model_parallel_size", 2}}, {1, 1, 1}},
      {"tp2", 2, {{"tensor_model_parallel_size", 2}}, {1, 1, 1}},
      {"dp2 x pp2", 4, {{"pipeline_model_parallel_size", 2}}, {2, 2, 2}},
  };
  return layouts;
}

json ChaosSpec(const ChaosLayout& layout, int train_iters) {
  json spec = SmallSpec(layout.world_size, train_iters);
  spec["model"]["num_layers"] = 2;
  spec["model"]["hidden_size"] = 32;
  spec["model"]["seq_length"] = 32;
  spec["model"]["attention_dropout"] = 0.1;
  spec["model"]["hidden_dropout"] = 0.1;
  spec["parallel"].update(layout.parallel);
  spec["training"]["global_batch_size"] = 4;
  spec["evaluation"] = {{"eval_interval", 30}, {"eval_iters", 2}};
  spec["recovery"] = {{"max_restarts", 1000}, {"max_failures_of_step", 1000}};
  return spec;
}

std::vector<std::string> StepNumbers(Cluster& cluster, const std::string& job) {
  std::vector<std::string> numbers;
  const Result metrics = cluster.Muster({"metrics", job, "--json"});
  EXPECT_EQ(metrics.code, 0) << metrics.err;
  for (const json& record : JsonLines(metrics.out)) {
    json kept;
    for (const char* name : {"iteration", "consumed_samples", "lm_loss", "grad_norm",
                             "learning_rate", "loss_scale", "skipped"}) {
      kept[name] = record[name];
    }
    numbers.push_back(kept.dump());
  }
  return numbers;
}

namespace {

// All but what is summed over the replicas is the same.
void ExpectNear(json ours, json unbroken, double tolerance) {
  for (const char* name : {"lm_loss", "grad_norm"}) {
    const double a = ours[name], b = unbroken[name];
    EXPECT_LE(std::abs(a - b), tolerance * std::abs(b)) << name << ": " << ours << " " << unbroken;
    ours.erase(name);
    unbroken.erase(name);
  }
  EXPECT_EQ(ours, unbroken);
}

void ExpectSameEvaluations(json ours, json unbroken, double tolerance) {
  if (tolerance > 0 && ours.size() == unbroken.size()) {
    for (size_t i = 0; i < ours.size(); ++i) {
      const double a = ours[i]["lm_loss"], b = unbroken[i]["lm_loss"];
      EXPECT_LE(std::abs(a - b), tolerance * std::abs(b)) << ours[i] << " " << unbroken[i];
      for (const char* name : {"lm_loss", "ppl"}) {
        ours[i].erase(name);
        unbroken[i].erase(name);
      }
    }
  }
  EXPECT_EQ(ours, unbroken);
}

}  // namespace

void ExpectSameNumbers(const std::vector<std::string>& numbers,
                       const std::vector<std::string>& unbroken, double tolerance) {
  ASSERT_EQ(numbers.size(), unbroken.size()) << "each iteration is in the ledger once";
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (tolerance > 0) {
      ExpectNear(json::parse(numbers[i]), json::parse(unbroken[i]), tolerance);
      if (::testing::Test::HasFailure()) return;
    } else {
      ASSERT_EQ(numbers[i], unbroken[i]);
    }
  }
}

UnbrokenRun RunUnbroken(Cluster& cluster, const json& spec) {
  const std::string job = cluster.Submit(spec);
  EXPECT_NE(job, "") << cluster.last_error;
  const json status = cluster.WaitForEnd(job);
  EXPECT_TRUE(status.is_object() && status["state"] == "COMPLETED" && status["restarts"] == 0)
      << status.dump(2);
  UnbrokenRun run{.numbers = StepNumbers(cluster, job)};
  if (status.is_object()) run.evaluations = status["evaluations"];
  EXPECT_EQ(run.numbers.size(), spec["training"]["train_iters"].get<size_t>());
  return run;
}

namespace {

// Of this spec and this trainer, by its file's time and size.
std::string CacheFile(const json& spec) {
  struct stat trainer = {};
  EXPECT_EQ(stat(Binary("muster-trainer").c_str(), &trainer), 0);
  const std::string key = absl::StrCat(spec.dump(), " ", trainer.st_size, " ",
                                       trainer.st_mtim.tv_sec, ".", trainer.st_mtim.tv_nsec);
  return absl::StrCat(UNBROKEN_DIR, "/", absl::Hex(std::hash<std::string>()(key)), ".json");
}

}  // namespace

UnbrokenRun UnbrokenOf(Cluster& cluster, const json& spec) {
  const std::string file = CacheFile(spec);
  const json known = json::parse(FileText(file), nullptr, false);
  if (known.is_object()) {
    return {.numbers = known["numbers"].get<std::vector<std::string>>(),
            .evaluations = known["evaluations"]};
  }
  const UnbrokenRun run = RunUnbroken(cluster, spec);
  if (::testing::Test::HasFailure()) return run;
  std::error_code error;
  std::filesystem::create_directories(UNBROKEN_DIR, error);
  const std::string mine = absl::StrCat(file, ".", getpid());
  PutFileText(mine, json{{"numbers", run.numbers}, {"evaluations", run.evaluations}}.dump());
  std::filesystem::rename(mine, file, error);
  return run;
}

void MakeUnruly(const std::string& folder, json* spec) {
  (*spec)["plugin"] = PLUGIN_DIR "/libunruly.so";
  (*spec)["model"]["forward_step"] = "unruly";
  (*spec)["resources"]["env"]["TEST_PACE"] = folder + "/pace";
}

// Never half written when somebody looks.
void SetPace(const std::string& folder, int ms) {
  const std::string file = folder + "/pace";
  PutFileText(file + ".new", absl::StrCat(ms));
  std::filesystem::rename(file + ".new", file);
}

void ExpectEndsAsUnbroken(ChaosCluster& chaos, const std::string& job, const UnbrokenRun& unbroken,
                          double tolerance) {
  constexpr absl::Duration limit = absl::Seconds(90);
  Cluster& cluster = chaos.cluster();
  json status;
  const bool ended = Eventually(
      [&] {
        chaos.Advance();
        if (chaos.coordinator_away()) return false;
        status = cluster.MusterJson({"status", job});
        return status.is_object() && !status["exit_code"].is_null();
      },
      limit);
  chaos.Heal();
  ASSERT_TRUE(ended) << "the job has not ended\n" << Report(chaos, job);
  ASSERT_EQ(status["state"], "COMPLETED") << status["reason"] << "\n" << Report(chaos, job);
  EXPECT_EQ(status["exit_code"], 0);
  ExpectSameNumbers(StepNumbers(cluster, job), unbroken.numbers, tolerance);
  ExpectSameEvaluations(status["evaluations"], unbroken.evaluations, tolerance);
  EXPECT_TRUE(cluster.WaitForWorkers(chaos.num_workers()))
      << cluster.Muster({"workers"}).out << Report(chaos, job);
  EXPECT_TRUE(cluster.NoTrainerLeft());
  for (int node = 0; node < chaos.num_nodes(); ++node) {
    EXPECT_EQ(chaos.agent(node).Wait(absl::ZeroDuration()), -1)
        << "agent " << ChaosCluster::NodeName(node)
        << " has ended by itself: " << chaos.agent(node).Stderr();
  }
  EXPECT_EQ(cluster.coordinator().Wait(absl::ZeroDuration()), -1)
      << "the coordinator has ended by itself: " << cluster.coordinator().Stderr();
  if (::testing::Test::HasFailure()) ADD_FAILURE() << Report(chaos, job);
}

namespace {

std::string Tail(const std::string& text, size_t lines) {
  std::vector<std::string> all = absl::StrSplit(text, '\n');
  if (all.size() > lines) all.erase(all.begin(), all.end() - static_cast<ptrdiff_t>(lines));
  return absl::StrJoin(all, "\n");
}

}  // namespace

std::string Report(ChaosCluster& chaos, const std::string& job) {
  Cluster& cluster = chaos.cluster();
  std::string report = absl::StrCat("---- what was done\n", chaos.history());
  if (!chaos.coordinator_away()) {
    json status = cluster.MusterJson({"status", job});
    if (status.is_object()) status.erase("phase_limits");
    absl::StrAppend(&report, "---- status\n", status.dump(1), "\n---- events\n",
                    cluster.Muster({"events", job}).out, "---- workers\n",
                    cluster.Muster({"workers"}).out);
  }
  absl::StrAppend(&report, "---- coordinator\n", Tail(cluster.coordinator().Stderr(), 60));
  for (int node = 0; node < chaos.num_nodes(); ++node) {
    absl::StrAppend(&report, "\n---- agent ", ChaosCluster::NodeName(node), "\n",
                    Tail(chaos.agent(node).Stderr(), 30));
    const std::string logs =
        absl::StrCat(cluster.folder().path(), "/", ChaosCluster::NodeName(node), "/logs/", job);
    std::error_code error;
    for (const auto& file : std::filesystem::directory_iterator(logs, error)) {
      absl::StrAppend(&report, "\n---- ", file.path().string(), "\n",
                      Tail(FileText(file.path().string()), 30));
    }
  }
  // The whole of it, for whoever looks for the cause.
  if (const char* keep = std::getenv("MUSTER_CHAOS_KEEP"); keep != nullptr) {
    std::error_code ignored;
    std::filesystem::copy(cluster.folder().path(),
                          absl::StrCat(keep, "/", cluster.folder().path().substr(5)),
                          std::filesystem::copy_options::recursive |
                              std::filesystem::copy_options::overwrite_existing,
                          ignored);
  }
  return report;
}

}  // namespace muster
