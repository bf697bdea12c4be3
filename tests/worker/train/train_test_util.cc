#include "tests/worker/train/train_test_util.h"

#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <thread>

#include <ATen/Parallel.h>
#include <ATen/ops/div.h>
#include <ATen/ops/mul.h>
#include <c10/core/AutogradState.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/dataset/indexed_dataset_builder.h"
#include "common/files/file_ops.h"
#include "common/spec/spec_json.h"
#include "common/tokenizer/byte_tokenizer.h"
#include "worker/comm/self_communicator.h"
#include "worker/comm/thread_communicator.h"
#include "worker/data/build_datasets.h"
#include "worker/model/caching_allocator.h"
#include "worker/model/tensor_memory.h"
#include "worker/provider/builtin.h"
#include "worker/provider/gpt_forward_step.h"
#include "worker/train/training.h"

namespace muster {
namespace {

constexpr char kTinySpec[] = R"({
  "name": "tiny",
  "model": {"num_layers": 2, "hidden_size": 16, "num_attention_heads": 2, "seq_length": 16,
            "attention_dropout": 0, "hidden_dropout": 0, "make_vocab_size_divisible_by": 1},
  "data": {"split": "8,1,1"},
  "training": {"micro_batch_size": 2, "global_batch_size": 8, "train_iters": 6},
  "optimizer": {"lr": 0.01},
  "schedule": {"min_lr": 0.001},
  "evaluation": {"eval_iters": 0},
  "parallel": {"distributed_backend": "gloo"},
  "resources": {"device": "cpu"}
})";

absl::Status WriteData(const std::string& prefix) {
  auto builder = IndexedDatasetBuilder::Create(prefix, TokenType::kUint16);
  if (!builder.ok()) return builder.status();
  for (int64_t document = 0; document < 60; ++document) {
    std::vector<int64_t> tokens;
    for (int64_t i = 0; i < 5 + document * 7 % 41; ++i) tokens.push_back((document + i) % 11);
    tokens.push_back(ByteTokenizer::kEod);
    if (absl::Status status = builder->AddDocument(tokens); !status.ok()) return status;
  }
  return builder->Finish();
}

// GPT's forward step, whose loss is NaN at one microbatch.
class NanForwardStep final : public ForwardStep {
 public:
  explicit NanForwardStep(int64_t at_microbatch) : at_microbatch_(at_microbatch) {}
  absl::StatusOr<ForwardStepResult> Run(DataIterator& data, ModelChunk& model,
                                        const at::Tensor& input) override {
    auto result = gpt_.Run(data, model, input);
    if (!result.ok() || ++microbatch_ != at_microbatch_) return result;
    result->loss_function = [inner = result->loss_function](const at::Tensor& output) {
      return inner(at::mul(output, std::nan("")));
    };
    return result;
  }

 private:
  GptForwardStep gpt_;
  const int64_t at_microbatch_;
  int64_t microbatch_ = 0;
};

// GPT's forward step with a loss function of the older kind: a mean over the whole sequences of the
// microbatch, without a number of tokens. Positions that are masked count in it.
class MeanForwardStep final : public ForwardStep {
 public:
  explicit MeanForwardStep(int64_t context_parallel_size) : cp_(context_parallel_size) {}
  absl::StatusOr<ForwardStepResult> Run(DataIterator& data, ModelChunk& model,
                                        const at::Tensor& input) override {
    auto result = gpt_.Run(data, model, input);
    if (!result.ok()) return result;
    result->loss_function = [cp = cp_, inner = result->loss_function](const at::Tensor& output) {
      LossResult loss = inner(output);
      loss.loss_sum = at::div(loss.loss_sum, static_cast<double>(output.numel() * cp));
      loss.num_tokens.reset();
      return loss;
    };
    return result;
  }

 private:
  GptForwardStep gpt_;
  const int64_t cp_;
};

// GPT's forward step, which spoils its chunk's last parameter at one microbatch.
class DriftForwardStep final : public ForwardStep {
 public:
  explicit DriftForwardStep(int64_t at_microbatch) : at_microbatch_(at_microbatch) {}
  absl::StatusOr<ForwardStepResult> Run(DataIterator& data, ModelChunk& model,
                                        const at::Tensor& input) override {
    if (++microbatch_ == at_microbatch_)
      model.parameters().back()->data.detach().view(-1).narrow(0, 0, 1).add_(0.125);
    return gpt_.Run(data, model, input);
  }

 private:
  GptForwardStep gpt_;
  const int64_t at_microbatch_;
  int64_t microbatch_ = 0;
};

// Data with fewer samples than the run needs.
class ShortDatasetProvider final : public DatasetProvider {
 public:
  ShortDatasetProvider(int64_t samples, int64_t valid_samples)
      : samples_(samples), valid_samples_(valid_samples) {}
  absl::StatusOr<Datasets> Build(const DatasetRequest& request) override {
    auto built = BuildGptDatasets({.spec = request.spec,
                                   .sizes = request.sizes,
                                   .train_samples = samples_,
                                   .valid_samples = valid_samples_,
                                   .test_samples = 0,
                                   .build_cache = request.build_cache});
    if (!built.ok()) return built.status();
    Datasets datasets{.train = std::make_shared<FirstSamples>(built->train, samples_)};
    if (valid_samples_ > 0)
      datasets.valid = std::make_shared<FirstSamples>(built->valid, valid_samples_);
    return datasets;
  }

 private:
  class FirstSamples final : public Dataset {
   public:
    FirstSamples(std::shared_ptr<const Dataset> all, int64_t size)
        : all_(std::move(all)), size_(size) {}
    int64_t size() const override { return size_; }
    absl::StatusOr<Batch> Collate(const std::vector<int64_t>& indices) const override {
      return all_->Collate(indices);
    }

   private:
    const std::shared_ptr<const Dataset> all_;
    const int64_t size_;
  };
  const int64_t samples_, valid_samples_;
};

}  // namespace

Settings With(Settings settings, const Settings& more) {
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

TrainTestRoot::TrainTestRoot() {
  std::string name = testing::TempDir() + "/muster_train_XXXXXX";
  path_ = mkdtemp(name.data());
  const absl::Status written = WriteData(path_ + "/data");
  EXPECT_TRUE(written.ok()) << written;
}

TrainTestRoot::~TrainTestRoot() { std::filesystem::remove_all(path_); }

std::string TrainTestRoot::Spec(const std::vector<std::string>& settings) const {
  std::vector<std::string> all = {absl::StrCat("data.data_path=[\"", path_, "/data\"]"),
                                  absl::StrCat("data.data_cache_path=", path_, "/cache")};
  all.insert(all.end(), settings.begin(), settings.end());
  auto text = ApplySetOptions(kTinySpec, all);
  EXPECT_TRUE(text.ok()) << text.status();
  for (const SpecProblem& problem : ParseJobSpec(*text).problems) {
    ADD_FAILURE() << "the test's spec: " << problem.ToString();
  }
  return *text;
}

void ScriptedHost::Send(TrainerToAgent message) {
  MutexLock lock(&mu_);
  messages.push_back(std::move(message));
}

std::vector<Directive> ScriptedHost::TakeDirectives() {
  const int64_t step = ++step_;
  if (auto it = before_end_of.find(step); it != before_end_of.end()) it->second();
  auto it = deliveries.find(step);
  return it == deliveries.end() ? std::vector<Directive>() : it->second;
}

absl::Status ScriptedHost::SendTracePiece(TracePieceMessage piece, absl::Duration) {
  MutexLock lock(&mu_);
  std::string& part = traces[piece.directive];
  EXPECT_EQ(piece.offset, static_cast<int64_t>(part.size()));
  EXPECT_LE(piece.data.size(), kMaxTracePiece);
  part += piece.data;
  if (piece.last) whole_traces.insert(piece.directive);
  return absl::OkStatus();
}

std::vector<Directive> ScriptedHost::WaitForDirectives(int64_t) {
  MutexLock lock(&mu_);
  return std::exchange(while_held, {});
}

bool ScriptedHost::ExitSignalReceived() {
  return ++asked_for_ >= signal_before_step.value_or(INT64_MAX);
}

std::vector<RankRun> RunJob(const std::string& spec_json, const RunOptions& options) {
  at::set_num_threads(1);
  InstallCountingCpuAllocator();
  const JobSpec spec = ParseJobSpec(spec_json).spec;
  const int size = static_cast<int>(spec.resources.world_size) + options.num_helpers;
  RealClock real_clock;
  std::vector<CommunicatorPtr> worlds = MakeThreadWorld(size);
  std::vector<RankRun> runs(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    CommunicatorPtr& mine = worlds[static_cast<size_t>(rank)];
    if (options.wrap) mine = options.wrap(rank, mine);
    RankRun& run = runs[static_cast<size_t>(rank)];
    run.host = std::make_unique<ScriptedHost>();
    if (options.script) options.script(rank, *run.host);
    threads.emplace_back([&, rank, world = worlds[static_cast<size_t>(rank)]] {
      // One of its own for each rank; never freed, as tensors may outlive the thread.
      SetCpuMemoryCounter(new MemoryCounter);
      // Ranks that share a GPU would share autograd's thread for it, too, and one of them would
      // wait there for the other. So each runs its backward passes itself.
      if (size > 1) c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
      ProviderRegistry providers;
      RegisterBuiltinProviders(providers);
      const int64_t nan_at = rank == options.nan_rank ? options.nan_microbatch : 0;
      EXPECT_TRUE(providers.AddForwardStep("nan", std::make_shared<NanForwardStep>(nan_at)).ok());
      EXPECT_TRUE(providers
                      .AddForwardStep("mean", std::make_shared<MeanForwardStep>(
                                                  spec.parallel.context_parallel_size))
                      .ok());
      EXPECT_TRUE(
          providers.AddForwardStep("drift", std::make_shared<DriftForwardStep>(nan_at)).ok());
      EXPECT_TRUE(
          providers
              .AddDatasetProvider("short", std::make_shared<ShortDatasetProvider>(
                                               options.short_samples, options.short_valid_samples))
              .ok());
      if (options.providers) options.providers(rank, providers);
      auto result = RunTraining({.spec = spec,
                                 .world = world,
                                 .host = *run.host,
                                 .providers = providers,
                                 .clock = options.clock == nullptr ? real_clock : *options.clock,
                                 .epoch = options.epoch,
                                 .directives_through = options.directives_through,
                                 .device = c10::Device(options.device),
                                 .process_start = {},
                                 .job_id = options.job_id,
                                 .place = {options.node, absl::StrCat("gpu", rank)},
                                 .examine_json = options.examine_json,
                                 .kept = options.kept ? options.kept(rank) : nullptr,
                                 .buddy = options.buddy ? options.buddy(rank) : -1,
                                 .ledger_through = options.ledger_through});
      run.status = result.status();
      run.peak_memory_bytes = TensorMemoryOn(c10::Device(options.device)).peak_bytes;
      if (!result.ok()) {
        world->Abort(std::string(result.status().message()));
        return;
      }
      run.exit_code = result->exit_code;
      run.reason = result->reason;
      run.iteration = result->iteration;
      run.yielded = result->yielded;
      run.helped = result->helped;
    });
  }
  for (std::thread& thread : threads) thread.join();
  return runs;
}

const ScriptedHost& ReporterOf(const std::vector<RankRun>& ranks) {
  size_t reporter = 0;
  int reporters = 0;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    EXPECT_TRUE(ranks[rank].status.ok()) << "rank " << rank << ": " << ranks[rank].status;
    const ScriptedHost& host = *ranks[rank].host;
    if (host.All<StepMessage>().empty() && host.All<EvaluationMessage>().empty()) continue;
    reporter = rank;
    ++reporters;
  }
  EXPECT_LE(reporters, 1) << "ranks that report steps or evaluations";
  return *ranks[reporter].host;
}

std::vector<StepMessage> StepsOf(const std::vector<RankRun>& ranks) {
  return ReporterOf(ranks).All<StepMessage>();
}

std::vector<StepMessage> Train(const std::string& spec_json, const RunOptions& options) {
  return StepsOf(RunJob(spec_json, options));
}

std::vector<double> Losses(const std::vector<StepMessage>& steps) {
  std::vector<double> losses;
  for (const StepMessage& step : steps) losses.push_back(step.lm_loss.value_or(std::nan("")));
  return losses;
}

std::vector<double> GradNorms(const std::vector<StepMessage>& steps) {
  std::vector<double> norms;
  for (const StepMessage& step : steps) norms.push_back(step.grad_norm.value_or(std::nan("")));
  return norms;
}

std::vector<double> Scales(const std::vector<StepMessage>& steps) {
  std::vector<double> scales;
  for (const StepMessage& step : steps) scales.push_back(step.loss_scale);
  return scales;
}

std::vector<bool> Skipped(const std::vector<StepMessage>& steps) {
  std::vector<bool> skipped;
  for (const StepMessage& step : steps) skipped.push_back(step.skipped);
  return skipped;
}

void ExpectSameCurve(const std::vector<StepMessage>& a, const std::vector<StepMessage>& b,
                     double tolerance) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    SCOPED_TRACE(absl::StrCat("iteration ", b[i].iteration));
    EXPECT_EQ(a[i].iteration, b[i].iteration);
    EXPECT_EQ(a[i].consumed_samples, b[i].consumed_samples);
    EXPECT_EQ(a[i].learning_rate, b[i].learning_rate);
    const auto near = [tolerance](double x, double y, const char* what) {
      EXPECT_LE(std::abs(x - y), tolerance * std::max(1.0, std::abs(y)))
          << what << " " << absl::StrCat(x) << " against " << absl::StrCat(y) << ", apart "
          << x - y;
    };
    near(a[i].lm_loss.value(), b[i].lm_loss.value(), "loss");
    near(a[i].grad_norm.value(), b[i].grad_norm.value(), "grad norm");
  }
}

std::map<std::string, std::string> TensorFiles(const std::string& checkpoint) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(checkpoint)) {
    const std::string name = entry.path().filename().string();
    if (name == "common.json" || name == "manifest.json") continue;
    auto bytes = ReadWholeFile(entry.path().string());
    EXPECT_TRUE(bytes.ok()) << bytes.status();
    files[name] = *std::move(bytes);
  }
  EXPECT_FALSE(files.empty()) << checkpoint;
  return files;
}

}  // namespace muster
