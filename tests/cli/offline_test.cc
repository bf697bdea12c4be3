// `muster` as a process, where no cluster is needed: exit codes, JSON, messages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "nlohmann/json.hpp"
#include "tests/integration/cluster.h"

namespace muster {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

class OfflineTest : public ::testing::Test {
 protected:
  Result Muster(std::vector<std::string> words) {
    words.insert(words.begin(), Binary("muster"));
    return RunCommand(folder_.path(), std::move(words));
  }
  std::string SpecFile(const json& spec) {
    PutFileText(folder_ / "spec.json", spec.dump());
    return folder_ / "spec.json";
  }
  TempFolder folder_;
};

TEST_F(OfflineTest, UsageFaultsExitWith2) {
  EXPECT_EQ(Muster({}).code, 2);
  EXPECT_EQ(Muster({"no-such-command"}).code, 2);
  EXPECT_EQ(Muster({"status"}).code, 2);
  EXPECT_EQ(Muster({"submit", folder_ / "missing.json"}).code, 2);
  EXPECT_THAT(Muster({"submit", folder_ / "missing.json"}).err,
              HasSubstr("No such file or directory"));
  EXPECT_EQ(Muster({"generate"}).code, 2);
}

TEST_F(OfflineTest, HelpAndVersion) {
  const Result help = Muster({"help"});
  EXPECT_EQ(help.code, 0);
  EXPECT_THAT(help.out, HasSubstr("submit"));
  for (const std::vector<std::string>& words : {std::vector<std::string>{"help", "local"},
                                                {"local", "--help"},
                                                {"local", "spec.json", "-h"}}) {
    const Result one = Muster(words);
    EXPECT_EQ(one.code, 0);
    EXPECT_THAT(one.out, HasSubstr("--metrics FILE"));
  }
  EXPECT_THAT(Muster({"data", "preprocess", "--help"}).out, HasSubstr("--output-prefix"));
  EXPECT_TRUE(json::parse(Muster({"version", "--json"}).out).contains("version"));
}

TEST_F(OfflineTest, NoCoordinatorIsExitCode3AndOneLine) {
  // Port 1 is privileged and unassigned: nothing listens there.
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"list"}, {"status", "job"}, {"watch", "job"}, {"workers"}}) {
    std::vector<std::string> command = words;
    command.insert(command.end(), {"--coordinator", "127.0.0.1:1"});
    const Result result = Muster(command);
    EXPECT_EQ(result.code, 3) << words[0];
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    EXPECT_THAT(result.err, HasSubstr("no coordinator answers at 127.0.0.1:1"));
  }
}

TEST_F(OfflineTest, TopologyOfASpec) {
  json spec = SmallSpec(8, 10);
  spec["parallel"]["tensor_model_parallel_size"] = 2;
  spec["parallel"]["pipeline_model_parallel_size"] = 2;
  spec["model"]["num_layers"] = 2;
  const Result result = Muster({"topology", SpecFile(spec), "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const json topology = json::parse(result.out);
  EXPECT_EQ(topology["world_size"], 8);
  EXPECT_EQ(topology["ranks"].size(), 8u);
  EXPECT_EQ(topology["ranks"][5], json::parse(R"({"rank":5,"tp":1,"cp":0,"ep":0,"expert_tp":1,
      "dp":0,"expert_dp":0,"pp":1,"worker":null,"node":null,"device":null})"));
  EXPECT_EQ(topology["groups"]["tp"], json::parse("[[0,1],[2,3],[4,5],[6,7]]"));
  EXPECT_EQ(topology["groups"]["pp"], json::parse("[[0,4],[1,5],[2,6],[3,7]]"));
  for (const char* name :
       {"tp", "cp", "dp", "pp", "dp_cp", "tp_cp", "tp_pp", "tp_dp", "tp_dp_cp", "ep", "expert_tp",
        "expert_dp", "tp_ep", "tp_ep_pp", "embedding", "position_embedding"}) {
    EXPECT_TRUE(topology["groups"].contains(name)) << name;
  }
  EXPECT_THAT(Muster({"topology", folder_ / "spec.json"}).out, HasSubstr("tp: [0,1][2,3]"));
}

TEST_F(OfflineTest, TopologyWithLevelsOfContextParallelRanksAndExperts) {
  json spec = SmallSpec(8, 10);
  spec["model"]["num_layers"] = 2;
  spec["model"]["num_experts"] = 4;
  spec["parallel"]["context_parallel_size"] = 4;
  spec["parallel"]["cp_comm_type"] = "a2a+p2p";
  spec["parallel"]["hierarchical_context_parallel_sizes"] = {2, 2};
  spec["parallel"]["expert_model_parallel_size"] = 2;
  const Result result = Muster({"topology", SpecFile(spec), "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const json groups = json::parse(result.out)["groups"];
  EXPECT_EQ(groups["cp"], json::parse("[[0,1,2,3],[4,5,6,7]]"));
  EXPECT_EQ(groups["hcp_0"], json::parse("[[0,1],[2,3],[4,5],[6,7]]"));
  EXPECT_EQ(groups["hcp_1"], json::parse("[[0,2],[1,3],[4,6],[5,7]]"));
  EXPECT_EQ(groups["ep"], json::parse("[[0,1],[2,3],[4,5],[6,7]]"));
  EXPECT_EQ(groups["expert_dp"], json::parse("[[0,2,4,6],[1,3,5,7]]"));
  EXPECT_THAT(Muster({"topology", folder_ / "spec.json"}).out, HasSubstr("hcp_1: [0,2][1,3]"));
}

TEST_F(OfflineTest, PlanOfASpec) {
  json spec = SmallSpec(2, 10);
  spec["training"]["global_batch_size"] = 8;
  const Result result = Muster({"plan", SpecFile(spec), "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const json plan = json::parse(result.out);
  EXPECT_EQ(plan["num_microbatches"], 4);
  EXPECT_EQ(plan["bubble_fraction"], 0.0);
  EXPECT_EQ(plan["problems"], json::array());
  // 16 wide, 1 layer, vocabulary 257, padded to 384, 16 positions: 2 norms, attention and MLP with
  // their biases, embeddings, the final norm.
  const int64_t layer = 2 * 32 + (16 * 48 + 48) + (16 * 16 + 16) + (16 * 64 + 64) + (64 * 16 + 16);
  EXPECT_EQ(plan["parameters"]["total"], layer + 384 * 16 + 16 * 16 + 32);
  EXPECT_EQ(plan["parameters"]["per_rank"].size(), 2u);
  EXPECT_EQ(plan["bytes_per_rank"][1]["parameters"], 4 * plan["parameters"]["total"].get<int>());
  EXPECT_GT(plan["flops_per_iteration"], 0.0);
  EXPECT_THAT(Muster({"plan", folder_ / "spec.json"}).out, HasSubstr("pipeline bubble"));
  // Weights and two moments in fp32, three generations.
  EXPECT_EQ(plan["host_bytes_per_rank"][1]["snapshots"],
            3 * 12 * plan["parameters"]["total"].get<int>());
  EXPECT_EQ(plan["host_bytes_per_rank"][1]["snapshot_copies"],
            plan["host_bytes_per_rank"][1]["snapshots"]);
  EXPECT_THAT(Muster({"plan", folder_ / "spec.json"}).out,
              HasSubstr("host memory of a rank: snapshots up to"));
  EXPECT_THAT(Muster({"plan", folder_ / "spec.json", "--set", "recovery.snapshot_interval=0"}).out,
              Not(HasSubstr("host memory")));
}

TEST_F(OfflineTest, PlanOfAShardedSpecWithExperts) {
  json spec = SmallSpec(4, 10);
  spec["model"]["num_layers"] = 2;
  spec["model"]["num_experts"] = 4;
  spec["parallel"]["expert_model_parallel_size"] = 2;
  spec["parallel"]["use_megatron_fsdp"] = true;
  spec["parallel"]["data_parallel_sharding_strategy"] = "optim_grads_params";
  const json plan = json::parse(Muster({"plan", SpecFile(spec), "--json"}).out);
  const json& rank = plan["bytes_per_rank"][3];
  EXPECT_EQ(rank["parameters"], plan["parameters"]["total"]);  // a quarter, of 4 bytes each
  EXPECT_GT(rank["gathered"], 0);
  EXPECT_EQ(rank["total"], rank["parameters"].get<int64_t>() + rank["gradients"].get<int64_t>() +
                               rank["optimizer"].get<int64_t>() + rank["gathered"].get<int64_t>() +
                               rank["activations"].get<int64_t>());
  // Each of a microbatch's 16 tokens goes to two experts.
  EXPECT_EQ(
      plan["experts"],
      (json{{"routing", "even"},
            {"rows_per_microbatch", spec["training"]["micro_batch_size"].get<int>() * 32.0}}));
  const std::string text = Muster({"plan", folder_ / "spec.json"}).out;
  EXPECT_THAT(text, HasSubstr("GATHERED"));
  EXPECT_THAT(text, HasSubstr("if routing is even"));
}

TEST_F(OfflineTest, PlanOfABadSpecListsEveryProblem) {
  json spec = SmallSpec(2, 10);
  spec["model"]["num_attention_heads"] = 3;
  spec["optimizer"]["lr"] = -1;
  spec["trainig"] = json::object();
  const Result result = Muster({"plan", SpecFile(spec)});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("num_attention_heads"));
  EXPECT_THAT(result.err, HasSubstr("optimizer.lr"));
  EXPECT_THAT(result.err, HasSubstr("trainig"));
  const json plan = json::parse(Muster({"plan", folder_ / "spec.json", "--json"}).out);
  EXPECT_GE(plan["problems"].size(), 3u);
}

TEST_F(OfflineTest, SetReplacesAField) {
  const std::string path = SpecFile(SmallSpec(2, 10));
  const Result result = Muster({"plan", path, "--json", "--set", "training.global_batch_size=16"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(json::parse(result.out)["num_microbatches"], 8);
  EXPECT_EQ(Muster({"plan", path, "--set", "training.global_batch=16"}).code, 2);
  EXPECT_EQ(Muster({"plan", path, "--set", "nonsense"}).code, 2);
}

TEST_F(OfflineTest, ScheduleOfASpec) {
  json spec = SmallSpec(2, 10);
  spec["parallel"]["pipeline_model_parallel_size"] = 2;
  spec["model"]["num_layers"] = 2;
  spec["training"]["global_batch_size"] = 2;
  const Result result = Muster({"schedule", SpecFile(spec), "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const json schedule = json::parse(result.out);
  ASSERT_EQ(schedule.size(), 2u);
  EXPECT_EQ(schedule[0][0]["op"], "forward");
  EXPECT_EQ(schedule[1][0]["op"], "recv_forward");
  int64_t forwards = 0;
  for (const json& op : schedule[1]) forwards += op["op"] == "forward";
  EXPECT_EQ(forwards, 2);
  EXPECT_EQ(schedule[1][1]["begin_slot"], 1);
  EXPECT_EQ(schedule[1][1]["end_slot"], 2);
}

TEST_F(OfflineTest, ScheduleAsTimelineListAndPicture) {
  json spec = SmallSpec(2, 10);
  spec["parallel"]["pipeline_model_parallel_size"] = 2;
  spec["model"]["num_layers"] = 2;
  spec["training"]["global_batch_size"] = 2;
  const std::string path = SpecFile(spec);
  const Result drawn = Muster({"schedule", path});
  ASSERT_EQ(drawn.code, 0) << drawn.err;
  EXPECT_EQ(drawn.out,
            "1F1B: p = 2, m = 2\n\n"
            "slot  0         5\n"
            "pp 0  F0F1. . B0--. B1--\n"
            "pp 1  . F0B0--F1B1--. .\n\n"
            "F0 forward of microbatch 0; B0-- its backward\n"
            "bubble 50.00 % of the ideal time, measured in 9 slots; (p-1)/(v m) = 1/2 = 50.00 %\n");
  EXPECT_EQ(Muster({"schedule", path, "--list"}).out.substr(0, 12), "pp 0: F0 sf ");
  const Result picture = Muster({"schedule", path, "--svg", folder_ / "s.svg"});
  EXPECT_EQ(picture.code, 0) << picture.err;
  EXPECT_EQ(picture.out, "");
  EXPECT_THAT(FileText(folder_ / "s.svg"), HasSubstr("<svg xmlns="));
  const Result refused = Muster({"schedule", path, "--svg", folder_ / "none/s.svg"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("cannot be written: No such file"));
}

TEST_F(OfflineTest, ScheduleShowsWhatIsRecomputedAndWhatIsReceivedAhead) {
  json spec = SmallSpec(2, 10);
  spec["parallel"]["pipeline_model_parallel_size"] = 2;
  spec["model"]["num_layers"] = 4;
  spec["training"]["micro_batch_size"] = 1;
  spec["training"]["global_batch_size"] = 4;
  spec["training"]["num_microbatches_with_partial_activation_checkpoints"] = 1;
  std::string path = SpecFile(spec);
  EXPECT_THAT(Muster({"schedule", path}).out,
              HasSubstr("1F1B: p = 2, m = 4, 1 partially checkpointed\n"));
  EXPECT_THAT(Muster({"schedule", path, "--list"}).out, HasSubstr("pp 0: F0 sf F1* sf+rb B0 F2 "));
  const json lists = json::parse(Muster({"schedule", path, "--json"}).out);
  EXPECT_FALSE(lists[0][0].contains("recompute"));
  EXPECT_EQ(lists[0][2]["recompute"], true);

  spec["parallel"]["virtual_pipeline_model_parallel_size"] = 2;
  spec["parallel"]["overlap_p2p_comm_warmup_flush"] = true;
  path = SpecFile(spec);
  EXPECT_THAT(Muster({"schedule", path}).out,
              HasSubstr("interleaved 1F1B, overlapped throughout: p = 2, v = 2, m = 4, N = 2, 1 "));
  EXPECT_THAT(Muster({"schedule", path, "--list"}).out, HasSubstr("pp 1: rf rf F0.0 sf rf F0.1*"));
}

TEST_F(OfflineTest, ScheduleOfAVastBatchIsRefused) {
  json spec = SmallSpec(2, 10);
  spec["training"]["global_batch_size"] = 2'000'000'000;
  const Result result = Muster({"schedule", SpecFile(spec)});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("training.global_batch_size=2000000000"));
}

TEST_F(OfflineTest, PreprocessThenInspect) {
  PutFileText(folder_ / "text.jsonl", "{\"text\": \"hello\"}\n{\"text\": \"you\"}\n");
  const Result made = Muster({"data", "preprocess", folder_ / "text.jsonl", "--output-prefix",
                              folder_ / "data", "--json"});
  ASSERT_EQ(made.code, 0) << made.err;
  EXPECT_EQ(json::parse(made.out)["num_documents"], 2);
  const Result seen = Muster({"data", "inspect", folder_ / "data", "--json", "--document", "1",
                              "--tokenizer-type", "byte"});
  ASSERT_EQ(seen.code, 0) << seen.err;
  const json data = json::parse(seen.out);
  EXPECT_EQ(data["num_tokens"], 5 + 1 + 3 + 1);
  EXPECT_EQ(data["document"]["text"], "you");
  EXPECT_EQ(Muster({"data", "inspect", folder_ / "nothing"}).code, 2);
}

TEST_F(OfflineTest, LocalWithTooFewWorkersStartsNothing) {
  const Result result = Muster(
      {"local", SpecFile(SmallSpec(2, 10)), "--workers", "1", "--state-dir", folder_ / "state"});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("resources.world_size=2"));
}

}  // namespace
}  // namespace muster
