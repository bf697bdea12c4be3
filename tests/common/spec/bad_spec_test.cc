// Every kind of fault: the field that is named and what is said about it.
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "spec_fixture.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

std::string AllOf(const std::vector<SpecProblem>& problems) {
  return absl::StrJoin(problems, "\n", [](std::string* out, const SpecProblem& problem) {
    out->append(problem.ToString());
  });
}

void ExpectOneProblem(const std::string& text, const std::string& field,
                      const std::string& fragment) {
  const ParsedSpec parsed = ParseJobSpec(text);
  ASSERT_EQ(parsed.problems.size(), 1u) << AllOf(parsed.problems);
  EXPECT_EQ(parsed.problems[0].field, field);
  EXPECT_THAT(parsed.problems[0].message, HasSubstr(fragment));
}

TEST(BadSpecTest, TheSpecThatTheTestsBreakIsGood) {
  EXPECT_EQ(AllOf(ParseJobSpec(GoodSpec()).problems), "");
}

// Faults of the text itself.
TEST(BadSpecTest, TextThatIsNoSpecIsRefusedWithTheReason) {
  const std::string good = GoodSpec();
  const struct {
    const char* name;
    std::string text;
    const char* fragment;
  } rows[] = {
      {"empty", "", "the document is empty"},
      {"blank", " \n\t ", "the document is empty"},
      {"truncated", "{\n  \"name\": \"x\",\n  \"model\": {",
       "ends too early, at line 3, column 13"},
      {"open string", "{\"name\": \"x", "not valid JSON at line 1, column"},
      {"trailing garbage", "{}\n}", "not valid JSON at line 2, column 1"},
      {"two documents", good + good, "not valid JSON at line 8"},
      {"trailing comma", "{\"name\": \"x\",}", "not valid JSON at line 1, column 14"},
      {"comment", "// x\n{}", "not valid JSON at line 1, column 1"},
      {"single quotes", "{'name': 1}", "not valid JSON at line 1, column 2"},
      {"list", "[1]", "a job spec is a JSON object; got a list"},
      {"number", "7", "a job spec is a JSON object; got a number"},
      {"null", "null", "a job spec is a JSON object; got null"},
      {"deep list", std::string(100000, '['), "nested deeper than 64 levels"},
      {"deep object", absl::StrCat("{\"a\": ", std::string(65, '['), std::string(65, ']'), "}"),
       "nested deeper than 64 levels"},
      {"invalid UTF-8", "{\"name\": \"a\xC3(\"}", "invalid UTF-8 at line 1, column"},
      {"overlong UTF-8", "{\"name\": \"\xC0\xAF\"}", "invalid UTF-8 at line 1, column"},
      {"lone surrogate", "{\"name\": \"\\ud800\"}", "not valid JSON at line 1, column"},
      {"raw NUL", std::string("{\"name\": \"a\0b\"}", 15), "not valid JSON at line 1, column"},
      {"too large", std::string((1 << 20) + 1, ' '), "at most 1048576 are allowed"},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.name);
    ExpectOneProblem(row.text, "", row.fragment);
  }
}

// Faults that --set cannot write, or would repair.
TEST(BadSpecTest, FaultsInTheTextOfAFieldNameTheField) {
  const std::string good = GoodSpec();
  const struct {
    const char* name;
    std::string text;
    const char* field;
    const char* fragment;
  } rows[] = {
      {"duplicate field",
       Replaced(good, "\"seq_length\": 32", "\"seq_length\": 32, \"seq_length\": 64"),
       "model.seq_length", "is given twice"},
      {"duplicate section", Replaced(good, "\"optimizer\":", "\"data\": {}, \"optimizer\":"),
       "data", "is given twice"},
      {"duplicate variable",
       Replaced(good, "\"world_size\"", "\"env\": {\"A\": \"1\", \"A\": \"2\"}, \"world_size\""),
       "resources.env", "the key \"A\" is given twice"},
      {"NaN", Replaced(good, "0.001", "NaN"), "optimizer.lr", "got NaN, infinity"},
      {"Infinity", Replaced(good, "0.001", "Infinity"), "optimizer.lr", "got NaN, infinity"},
      {"-Infinity", Replaced(good, "0.001", "-Infinity"), "optimizer.lr", "got NaN, infinity"},
      {"1e400", Replaced(good, "0.001", "1e400"), "optimizer.lr", "beyond double precision"},
      {"1e400 for a whole number", Replaced(good, "\"seq_length\": 32", "\"seq_length\": 1e400"),
       "model.seq_length", "beyond double precision"},
      {"section is a number", Replaced(good, "{\"dataset_provider\": \"mock\"}", "3"), "data",
       "expected an object with the section's fields; got a number"},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.name);
    ExpectOneProblem(row.text, row.field, row.fragment);
  }
}

struct BadSetting {
  std::vector<std::string> settings;
  const char* field;
  const char* fragment;
};

void ExpectEach(const std::vector<BadSetting>& rows) {
  for (const BadSetting& row : rows) {
    SCOPED_TRACE(absl::StrJoin(row.settings, " "));
    ExpectOneProblem(With(row.settings), row.field, row.fragment);
  }
}

TEST(BadSpecTest, AnUnknownNameComesWithTheNearestKnownOne) {
  ExpectEach({
      {{"model.hiden_size=3"},
       "model.hiden_size",
       "unknown field of section model; did you mean hidden_size?"},
      {{"model.hidden-size=3"}, "model.hidden-size", "did you mean hidden_size?"},
      {{"training.micro_batchsize=3"},
       "training.micro_batchsize",
       "did you mean micro_batch_size?"},
      {{"model.lr=3"}, "model.lr", "it belongs to section optimizer: write optimizer.lr"},
      {{"training.tensor_model_parallel_size=1"},
       "training.tensor_model_parallel_size",
       "it belongs to section parallel: write parallel.tensor_model_parallel_size"},
      {{"training.tensor_model_parallel_sise=1"},
       "training.tensor_model_parallel_sise",
       "did you mean parallel.tensor_model_parallel_size?"},
      {{"model.name=x"}, "model.name", "it belongs outside the sections: write name"},
      {{"model.zzzzzzzzzzz=3"}, "model.zzzzzzzzzzz", "docs/spec.md lists all fields"},
      {{"modle.num_layers=3"}, "modle", "unknown section or field; did you mean model?"},
      {{"num_layers=3"}, "num_layers", "belongs to section model: write model.num_layers"},
      {{"nmae=x"}, "nmae", "did you mean name?"},
      {{"qqqqqqqqqq=1"}, "qqqqqqqqqq", "docs/spec.md lists all of them"},
      {{"model.normalization=rmsnorm"},
       "model.normalization",
       "must be one of LayerNorm, RMSNorm; did you mean RMSNorm?"},
      {{"optimizer.optimizer=adm"}, "optimizer.optimizer", "did you mean adam?"},
      {{"schedule.lr_decay_style=cosin"}, "schedule.lr_decay_style", "did you mean cosine?"},
      {{"resources.device=tpu"}, "resources.device", "must be one of cpu, cuda"},
      {{"rerun.mode=report_stats"}, "rerun.mode", "must be one of disabled, validate_results"},
  });
}

TEST(BadSpecTest, AWrongTypeSaysWhatIsExpectedAndWhatWasGiven) {
  ExpectEach({
      {{"model.num_layers=\"4\""},
       "model.num_layers",
       "expected a whole number, between 1 and 10000000; got a string; write it without quotes"},
      {{"model.num_layers=four"}, "model.num_layers", "got a string"},
      {{"model.num_layers=true"}, "model.num_layers", "got true or false"},
      {{"model.num_layers=null"}, "model.num_layers", "got null"},
      {{"model.num_layers=[4]"}, "model.num_layers", "got a list"},
      {{"model.num_layers=4.5"}, "model.num_layers", "got a fraction"},
      {{"model.swiglu=1"}, "model.swiglu", "expected true or false; got a number"},
      {{"model.swiglu=\"true\""}, "model.swiglu", "write it without quotes"},
      {{"optimizer.lr={}"}, "optimizer.lr", "expected a number, at least 0; got an object"},
      {{"name=[]"}, "name", "expected a string; got a list"},
      {{"name=\"\""}, "name", "must not be empty"},
      {{"checkpoint.load=\"a\\u0000b\""}, "checkpoint.load", "control characters"},
      {{"data.data_cache_path={}"}, "data.data_cache_path", "got an object"},
      {{"training.iterations_to_skip=3"},
       "training.iterations_to_skip",
       "expected a list of whole numbers"},
      {{"training.iterations_to_skip=[1,\"x\"]"},
       "training.iterations_to_skip",
       "item 1: expected a list of whole numbers"},
      {{"resources.env=[]"}, "resources.env", "expected an object of strings; got a list"},
      {{"resources.env={\"A\":1}"}, "resources.env", "the value of \"A\" must be a string"},
  });
}

TEST(BadSpecTest, ANumberOutOfRangeNamesTheRange) {
  ExpectEach({
      {{"model.hidden_size=-3"}, "model.hidden_size", "must be between 1 and 10000000"},
      {{"model.hidden_size=0"}, "model.hidden_size", "must be between 1 and 10000000"},
      {{"model.hidden_size=9223372036854775808"}, "model.hidden_size", "must be between 1 and"},
      {{"model.hidden_size=1e30"}, "model.hidden_size", "must be between 1 and"},
      {{"optimizer.lr=-0.1"}, "optimizer.lr", "must be at least 0"},
      {{"optimizer.adam_beta2=1"}, "optimizer.adam_beta2", "must be between 0 and"},
      {{"optimizer.adam_eps=0"}, "optimizer.adam_eps", "must be greater than 0"},
      {{"optimizer.clip_grad=-1"}, "optimizer.clip_grad", "must be at least 0"},
      {{"model.hidden_dropout=1.5"}, "model.hidden_dropout", "must be between 0 and 1"},
      {{"training.seed=0"}, "training.seed", "must be between 1 and 4294967295"},
      {{"training.train_iters=0"}, "training.train_iters", "must be between 1 and"},
      {{"training.micro_batch_size=0"}, "training.micro_batch_size", "must be between 1 and"},
      {{"training.log_interval=0"}, "training.log_interval", "must be between 1 and"},
      {{"training.exit_duration_in_mins=0"}, "training.exit_duration_in_mins", "greater than 0"},
      {{"resources.spares=-1"}, "resources.spares", "must be between 0 and"},
      {{"resources.world_size=0"}, "resources.world_size", "must be between 1 and"},
      {{"recovery.heartbeat_interval_ms=0"}, "recovery.heartbeat_interval_ms", "must be between"},
      {{"checkpoint.keep_last=0"}, "checkpoint.keep_last", "must be between 1 and"},
      {{"training.train_iters=100000000000", "training.global_batch_size=10000000",
        "model.seq_length=10000000"},
       "training.train_iters",
       "cannot be counted in 64 bits"},
  });
}

TEST(BadSpecTest, AMissingRequiredFieldIsNamed) {
  const std::string good = GoodSpec();
  ExpectOneProblem(Replaced(good, "\"num_layers\": 4, ", ""), "model.num_layers",
                   "is required: a whole number, between 1 and");
  ExpectOneProblem(Replaced(good, "\"optimizer\": {\"lr\": 0.001},", ""), "optimizer.lr",
                   "is required: a number, at least 0");
  ExpectOneProblem(Replaced(good, "\"train_iters\": 100", "\"log_interval\": 1"),
                   "training.train_iters", "is required (or training.train_samples)");
}

TEST(BadSpecTest, RulesOnTheModel) {
  ExpectEach({
      {{"model.num_attention_heads=5"},
       "model.hidden_size",
       "must be a multiple of model.num_attention_heads=5"},
      {{"model.num_query_groups=3"},
       "model.num_query_groups",
       "must divide model.num_attention_heads=4"},
      {{"model.max_position_embeddings=16"},
       "model.seq_length",
       "must be at most model.max_position_embeddings=16"},
      {{"model.position_embedding_type=rope", "model.rotary_percent=0.2"},
       "model.rotary_percent",
       "rotates 3 of a head's 16 channels"},
      {{"model.swiglu=true", "model.hidden_size=16"},
       "model.hidden_size",
       "set model.ffn_hidden_size"},
      {{"model.vocab_size=100"}, "model.vocab_size", "must be at least 257"},
      {{"model.model_provider=mine"}, "model.model_provider", "needs the plugin that has it"},
      {{"model.forward_step=mine"}, "model.forward_step", "needs the plugin that has it"},
      {{"data.dataset_provider=mine"}, "data.dataset_provider", "must be gpt or mock"},
  });
}

TEST(BadSpecTest, RulesOnTheRankGrid) {
  ExpectEach({
      {{"parallel.tensor_model_parallel_size=3", "model.num_attention_heads=3",
        "model.kv_channels=8", "model.ffn_hidden_size=96"},
       "resources.world_size",
       "must be a multiple of tensor x pipeline x context parallel size = 3"},
      {{"parallel.expert_tensor_parallel_size=3"},
       "resources.world_size",
       "must be a multiple of expert tensor x expert x pipeline parallel size = 3 x 1 x 1"},
      {{"parallel.order=tp-xp"}, "parallel.order", "unknown axis \"xp\""},
      {{"parallel.order=tp-dp-tp"}, "parallel.order", "names the axis tp twice"},
      {{"parallel.order=tp-pp"}, "parallel.order", "must name the axis dp, whose size is 2"},
      {{"parallel.order=tp-cp-ep-pp-dp", "resources.world_size=16", "training.global_batch_size=16",
        "parallel.tensor_model_parallel_size=2", "parallel.pipeline_model_parallel_size=2",
        "parallel.expert_model_parallel_size=4", "parallel.expert_tensor_parallel_size=1",
        "parallel.sequence_parallel=true", "model.num_experts=4"},
       "parallel.order",
       "must end in pp"},
      {{"parallel.tensor_model_parallel_size=2", "model.num_attention_heads=1"},
       "model.num_attention_heads",
       "must be a multiple of parallel.tensor_model_parallel_size=2"},
      {{"parallel.tensor_model_parallel_size=2", "model.num_query_groups=1"},
       "model.num_query_groups",
       "must be at least parallel.tensor_model_parallel_size=2"},
      {{"parallel.tensor_model_parallel_size=2", "model.ffn_hidden_size=99"},
       "model.ffn_hidden_size",
       "must be a multiple of parallel.tensor_model_parallel_size=2"},
      {{"parallel.tensor_model_parallel_size=2", "parallel.sequence_parallel=true",
        "model.seq_length=33"},
       "model.seq_length",
       "must be a multiple of tensor x context parallel size"},
      {{"parallel.context_parallel_size=2", "model.seq_length=34"},
       "model.seq_length",
       "must be a multiple of 2 x parallel.context_parallel_size = 4"},
      {{"parallel.context_parallel_size=2", "parallel.cp_comm_type=a2a",
        "model.num_query_groups=1"},
       "parallel.cp_comm_type",
       "a2a needs query heads (4) and query groups (1)"},
      {{"parallel.distributed_backend=nccl"}, "parallel.distributed_backend", "on cpu use gloo"},
      {{"parallel.distributed_backend=gloo", "resources.device=cuda"},
       "parallel.distributed_backend",
       "on cuda use nccl"},
  });
}

TEST(BadSpecTest, RulesOnPipelineStages) {
  const auto with_pp = [](std::vector<std::string> settings) {
    settings.push_back("parallel.pipeline_model_parallel_size=2");
    settings.push_back("training.global_batch_size=16");
    return settings;
  };
  ExpectEach({
      {with_pp({"model.num_layers=5"}), "model.num_layers",
       "must be a multiple of parallel.pipeline_model_parallel_size=2"},
      {with_pp({"parallel.account_for_embedding_in_pipeline_split=true"}), "model.num_layers",
       "plus 1 accounted for"},
      {with_pp({"parallel.decoder_first_pipeline_num_layers=5"}),
       "parallel.decoder_first_pipeline_num_layers", "leaves -1 of model.num_layers=4"},
      {with_pp({"parallel.decoder_first_pipeline_num_layers=1",
                "parallel.decoder_last_pipeline_num_layers=1"}),
       "parallel.decoder_first_pipeline_num_layers", "leaves 2 of model.num_layers=4 for 0"},
      {with_pp({"parallel.decoder_last_pipeline_num_layers=1",
                "parallel.account_for_loss_in_pipeline_split=true"}),
       "parallel.decoder_last_pipeline_num_layers", "excludes account_for_embedding"},
      {with_pp({"parallel.virtual_pipeline_model_parallel_size=2",
                "parallel.num_layers_per_virtual_pipeline_stage=1"}),
       "parallel.num_layers_per_virtual_pipeline_stage", "give only one of"},
      {{"parallel.virtual_pipeline_model_parallel_size=2"},
       "parallel.virtual_pipeline_model_parallel_size",
       "of at least 2"},
      {with_pp({"parallel.virtual_pipeline_model_parallel_size=3"}),
       "parallel.virtual_pipeline_model_parallel_size", "must divide every stage's layers"},
      {with_pp({"parallel.num_layers_per_virtual_pipeline_stage=3"}),
       "parallel.num_layers_per_virtual_pipeline_stage", "must divide a stage's 2 layers"},
      {with_pp({"parallel.num_layers_per_virtual_pipeline_stage=1",
                "parallel.decoder_first_pipeline_num_layers=1"}),
       "parallel.num_layers_per_virtual_pipeline_stage", "excludes decoder_first"},
      {with_pp({"parallel.virtual_pipeline_model_parallel_size=2",
                "parallel.microbatch_group_size_per_virtual_pipeline_stage=1"}),
       "parallel.microbatch_group_size_per_virtual_pipeline_stage", "must be at least"},
      {with_pp({"parallel.virtual_pipeline_model_parallel_size=2", "training.micro_batch_size=16"}),
       "training.global_batch_size", "interleaved schedule needs at least 2"},
      {with_pp({"parallel.virtual_pipeline_model_parallel_size=2", "training.micro_batch_size=16",
                "training.micro_batch_size=1",
                "parallel.microbatch_group_size_per_virtual_pipeline_stage=3"}),
       "training.global_batch_size", "the last group of 3 would have 1, fewer than the 2 stages"},
      {with_pp({"parallel.pipeline_model_parallel_layout=Et|tt|tL"}),
       "parallel.pipeline_model_parallel_layout", "has 3 stages"},
  });
}

TEST(BadSpecTest, RulesOnExperts) {
  const auto with_experts = [](std::vector<std::string> settings) {
    settings.insert(settings.begin(), "model.num_experts=4");
    return settings;
  };
  ExpectEach({
      {{"parallel.expert_model_parallel_size=2"},
       "parallel.expert_model_parallel_size",
       "needs model.num_experts"},
      {with_experts({"model.num_experts=3", "parallel.expert_model_parallel_size=2"}),
       "model.num_experts", "must be a multiple of parallel.expert_model_parallel_size=2"},
      {with_experts({"model.moe_router_topk=5"}), "model.moe_router_topk",
       "must be at most model.num_experts=4"},
      {with_experts({"model.moe_router_topk=1"}), "model.moe_router_pre_softmax",
       "must be true with"},
      {with_experts(
           {"model.moe_router_load_balancing_type=sinkhorn", "model.moe_aux_loss_coeff=1"}),
       "model.moe_aux_loss_coeff", "must be 0 with sinkhorn"},
      {with_experts({"model.moe_pad_expert_input_to_capacity=true"}),
       "model.moe_pad_expert_input_to_capacity", "needs model.moe_expert_capacity_factor"},
      {with_experts({"parallel.tensor_model_parallel_size=2", "parallel.sequence_parallel=true"}),
       "model.add_bias_linear", "must be false with experts"},
      {with_experts({"parallel.tensor_model_parallel_size=2", "model.add_bias_linear=false"}),
       "parallel.sequence_parallel", "must be true to train experts"},
  });
}

TEST(BadSpecTest, RulesOnShardedDataParallelism) {
  const std::string fsdp2 = "parallel.use_torch_fsdp2=true";
  const std::string untied = "model.untie_embeddings_and_output_weights=true";
  ExpectEach({
      {{"parallel.overlap_param_gather=true", "parallel.use_distributed_optimizer=true"},
       "parallel.overlap_param_gather",
       "needs parallel.overlap_grad_reduce"},
      {{"parallel.overlap_param_gather=true", "parallel.overlap_grad_reduce=true"},
       "parallel.overlap_param_gather",
       "needs parallel.use_distributed_optimizer, parallel.use_megatron_fsdp or"},
      {{"parallel.ddp_bucket_size=100", "parallel.ddp_num_buckets=2"},
       "parallel.ddp_num_buckets",
       "excludes parallel.ddp_bucket_size"},
      {{"parallel.ddp_average_in_collective=true", "training.calculate_per_token_loss=true"},
       "parallel.ddp_average_in_collective",
       "excludes training.calculate_per_token_loss"},
      {{"parallel.num_distributed_optimizer_instances=2"},
       "parallel.num_distributed_optimizer_instances",
       "needs parallel.use_distributed_optimizer"},
      {{"parallel.num_distributed_optimizer_instances=3",
        "parallel.use_distributed_optimizer=true"},
       "parallel.num_distributed_optimizer_instances",
       "must divide data x context"},
      {{"parallel.data_parallel_sharding_strategy=optim"},
       "parallel.data_parallel_sharding_strategy",
       "needs parallel.use_megatron_fsdp"},
      {{"parallel.use_megatron_fsdp=true", "optimizer.optimizer=muon"},
       "parallel.use_megatron_fsdp",
       "adam or sgd only"},
      {{fsdp2, untied, "optimizer.optimizer=dist_muon"},
       "parallel.use_torch_fsdp2",
       "adam or sgd only"},
      {{fsdp2}, "parallel.use_torch_fsdp2", "needs model.untie_embeddings_and_output_weights"},
      {{fsdp2, untied, "parallel.use_distributed_optimizer=true"},
       "parallel.use_torch_fsdp2",
       "excludes parallel.use_distributed_optimizer"},
      {{fsdp2, untied, "parallel.use_megatron_fsdp=true"},
       "parallel.use_torch_fsdp2",
       "excludes parallel.use_megatron_fsdp"},
      {{fsdp2, untied, "parallel.pipeline_model_parallel_size=2"},
       "parallel.use_torch_fsdp2",
       "needs pipeline_model_parallel_size=1"},
      {{fsdp2, untied, "training.fp16=true"}, "parallel.use_torch_fsdp2", "excludes training.fp16"},
  });
}

TEST(BadSpecTest, RulesOnData) {
  const std::string gpt = "data.dataset_provider=gpt";
  ExpectEach({
      {{"data.data_path=a"}, "data.dataset_provider", "reads no files; remove the data paths"},
      {{gpt}, "data.data_path", "is required by dataset_provider gpt"},
      {{gpt, "data.data_path=a", "data.train_data_path=b"}, "data.data_path", "keep one form"},
      {{gpt, "data.train_data_path=b", "data.split=1,1,1"}, "data.split", "is for data_path only"},
      {{gpt, "data.valid_data_path=b"}, "data.train_data_path", "is required next to"},
      {{"data.split=90,x"}, "data.split", "must be up to three numbers"},
      {{"data.split=1,1,1,1"}, "data.split", "must be up to three numbers"},
      {{"data.split=0,0,0"}, "data.split", "must add up to more than 0"},
      {{gpt, "data.data_path=[0.5,\"a\",0,\"b\"]"}, "data.data_path", "weights must be finite"},
      {{gpt, "data.data_path=[0.5,\"a\",\"b\"]"},
       "data.data_path",
       "\"0.5\" is a number where a path is expected"},
      {{"data.tokenizer_type=huggingface"},
       "data.tokenizer_model",
       "is required by tokenizer_type huggingface"},
      {{"data.tokenizer_model=x.json"},
       "data.tokenizer_model",
       "is not used by tokenizer_type byte"},
  });
}

TEST(BadSpecTest, RulesOnBatches) {
  ExpectEach({
      {{"training.global_batch_size=10"},
       "training.global_batch_size",
       "must be a multiple of training.micro_batch_size x data parallel size = 2 x 2 = 4"},
      {{"training.global_batch_size=3", "training.decrease_batch_size_if_needed=true"},
       "training.global_batch_size",
       "must be at least"},
      {{"evaluation.eval_global_batch_size=6"},
       "evaluation.eval_global_batch_size",
       "must be a multiple of"},
      {{"training.rampup_batch_size=[4,4]"},
       "training.rampup_batch_size",
       "must be [start, increment, samples]"},
      {{"training.rampup_batch_size=[4,0,100]"}, "training.rampup_batch_size", "of at least 1"},
      {{"training.rampup_batch_size=[8,4,100]"},
       "training.rampup_batch_size",
       "start must reach training.global_batch_size=8 in one or more steps"},
      {{"training.rampup_batch_size=[4,3,100]"}, "training.rampup_batch_size", "must reach"},
      {{"training.rampup_batch_size=[2,6,100]"},
       "training.rampup_batch_size",
       "start and increment must be multiples of"},
      {{"training.rampup_batch_size=[-4,4,100]"}, "training.rampup_batch_size", "item 0: must be"},
      {{"training.train_samples=800"}, "training.train_samples", "excludes training.train_iters"},
  });
}

TEST(BadSpecTest, RulesOnPrecisionAndOptimizer) {
  ExpectEach({
      {{"training.bf16=true", "training.fp16=true"}, "training.fp16", "only one of"},
      {{"training.bf16=true", "training.fp64=true"}, "training.fp64", "only one of"},
      {{"training.fp64=true", "resources.device=cuda"}, "training.fp64", "needs resources.device"},
      {{"training.min_loss_scale=8", "training.initial_loss_scale=4"},
       "training.min_loss_scale",
       "must be at most initial_loss_scale=4"},
      {{"parallel.grad_reduce_in_bf16=true"},
       "parallel.grad_reduce_in_bf16",
       "needs training.bf16"},
      {{"parallel.grad_reduce_in_bf16=true", "training.bf16=true",
        "parallel.accumulate_allreduce_grads_in_fp32=true"},
       "parallel.grad_reduce_in_bf16",
       "excludes parallel.accumulate"},
      {{"training.recompute_granularity=full", "training.recompute_num_layers=1"},
       "training.recompute_method",
       "is required by recompute_granularity full"},
      {{"training.recompute_granularity=full", "training.recompute_method=block"},
       "training.recompute_num_layers",
       "is required by recompute_granularity full"},
      {{"training.recompute_granularity=selective", "training.recompute_method=block"},
       "training.recompute_method",
       "needs recompute_granularity full"},
      {{"training.recompute_num_layers=1"},
       "training.recompute_num_layers",
       "needs recompute_granularity full"},
      {{"optimizer.optimizer=muon", "training.fp16=true"}, "optimizer.optimizer", "use bf16"},
      {{"optimizer.decoupled_min_lr=1"},
       "optimizer.decoupled_min_lr",
       "needs optimizer.decoupled_lr"},
      {{"optimizer.decoupled_lr=0.1", "optimizer.decoupled_min_lr=1"},
       "optimizer.decoupled_lr",
       "must be at least the smallest rate"},
  });
}

TEST(BadSpecTest, RulesOnTheSchedule) {
  const std::string by_samples = "training.train_iters=null";
  const std::string samples = "training.train_samples=800";
  ExpectEach({
      {{"schedule.min_lr=0.1"}, "schedule.min_lr", "must be at most optimizer.lr=0.001"},
      {{"schedule.lr_warmup_init=0.1"}, "schedule.lr_warmup_init", "must be at most optimizer.lr"},
      {{"schedule.lr_warmup_iters=100"},
       "schedule.lr_warmup_iters",
       "must be less than training.train_iters=100"},
      {{"schedule.lr_warmup_iters=50", "schedule.lr_decay_iters=40"},
       "schedule.lr_warmup_iters",
       "must be less than schedule.lr_decay_iters=40"},
      {{"schedule.lr_warmup_iters=5", "schedule.lr_warmup_fraction=0.1"},
       "schedule.lr_warmup_fraction",
       "keep one of them"},
      {{"schedule.lr_warmup_fraction=1"}, "schedule.lr_warmup_fraction", "must be less than 1"},
      {{"schedule.lr_warmup_samples=5"}, "schedule.lr_warmup_samples", "counts samples"},
      {{"schedule.lr_decay_samples=5"}, "schedule.lr_decay_samples", "counts samples"},
      {{by_samples, samples, "schedule.lr_decay_iters=50"},
       "schedule.lr_decay_iters",
       "counts iterations"},
      {{by_samples, samples, "schedule.lr_warmup_samples=900"},
       "schedule.lr_warmup_samples",
       "must be less than training.train_samples=800"},
      {{"schedule.lr_decay_style=WSD"}, "schedule.lr_wsd_decay_iters", "is required by"},
      {{by_samples, samples, "schedule.lr_decay_style=WSD"},
       "schedule.lr_wsd_decay_samples",
       "is required by"},
      {{"schedule.lr_decay_style=WSD", "schedule.lr_wsd_decay_iters=101"},
       "schedule.lr_wsd_decay_iters",
       "must be at most training.train_iters=100"},
      {{"schedule.start_weight_decay=0.1"},
       "schedule.start_weight_decay",
       "use optimizer.weight_decay"},
      {{"schedule.weight_decay_incr_style=linear", "schedule.start_weight_decay=0.1"},
       "schedule.end_weight_decay",
       "is required by weight_decay_incr_style linear"},
      {{"schedule.weight_decay_incr_style=linear", "schedule.start_weight_decay=0.1",
        "schedule.end_weight_decay=0.01"},
       "schedule.end_weight_decay",
       "must be at least schedule.start_weight_decay=0.1"},
      {{"schedule.override_opt_param_scheduler=true",
        "schedule.use_checkpoint_opt_param_scheduler=true"},
       "schedule.override_opt_param_scheduler",
       "excludes"},
  });
}

TEST(BadSpecTest, RulesOnCheckpointsAndTheJob) {
  ExpectEach({
      {{"checkpoint.save=c"}, "checkpoint.save_interval", "is required by checkpoint.save"},
      {{"checkpoint.save_retain_interval=10"},
       "checkpoint.save_retain_interval",
       "needs checkpoint"},
      {{"checkpoint.save=c", "checkpoint.save_interval=4", "checkpoint.save_retain_interval=10"},
       "checkpoint.save_retain_interval",
       "must be a multiple of checkpoint.save_interval=4"},
      {{"checkpoint.ckpt_step=10"}, "checkpoint.ckpt_step", "needs checkpoint.load"},
      {{"name=a/b"}, "name", "no '/'"},
      {{"recovery.heartbeat_timeout_ms=500"}, "recovery.heartbeat_timeout_ms", "must be greater"},
      {{"resources.env={\"1A\":\"x\"}"}, "resources.env", "is not a variable name"},
      {{"resources.env.LD_PRELOAD=x.so"}, "resources.env", "is the workers' operator's to set"},
      {{"resources.env.OMP_NUM_THREADS=3"}, "resources.env", "use training.num_threads"},
      {{"resources.env.CUDA_VISIBLE_DEVICES=1"}, "resources.env", "would renumber the device"},
  });
}

TEST(BadSpecTest, AllFaultsOfADocumentAreReportedAtOnceInDocumentOrder) {
  const ParsedSpec parsed = ParseJobSpec(R"({
    "model": {"num_layers": -1, "hidden_sizes": 64, "hidden_size": 64, "num_attention_heads": 5,
              "seq_length": NaN, "swiglu": "yes"},
    "data": {"dataset_provider": "mock", "dataset_provider": "gpt"},
    "training": {"micro_batch_size": 2.5, "fp16": true, "bf16": true, "train_iters": 10},
    "optimizer": {"lr": 1e400},
    "schedule": {"lr_warmup_iters": 10},
    "extra": 1
  })");
  std::vector<std::string> fields;
  for (const SpecProblem& problem : parsed.problems) fields.push_back(problem.field);
  EXPECT_THAT(fields,
              ::testing::ElementsAre("model.num_layers", "model.hidden_sizes", "model.seq_length",
                                     "model.swiglu", "data.dataset_provider",
                                     "training.micro_batch_size", "optimizer.lr", "extra",
                                     "model.hidden_size",  // 5 heads
                                     "training.fp16", "schedule.lr_warmup_iters"))
      << AllOf(parsed.problems);
}

TEST(BadSpecTest, AProblemReadsAsFieldValueAndRule) {
  EXPECT_EQ(ParseJobSpec(With({"model.hidden_size=-3"})).problems.at(0).ToString(),
            "model.hidden_size=-3: must be between 1 and 10000000");
  EXPECT_EQ(
      ParseJobSpec(With({"optimizer.optimizer=adm"})).problems.at(0).ToString(),
      "optimizer.optimizer=\"adm\": must be one of adam, sgd, muon, dist_muon; did you mean adam?");
}

TEST(BadSpecTest, ALongValueIsCutInTheMessage) {
  const SpecProblem problem =
      ParseJobSpec(With({absl::StrCat("model.swiglu=", std::string(5000, 'x'))})).problems.at(0);
  EXPECT_LT(problem.value.size(), 80u);
}

}  // namespace
}  // namespace muster
