// The four callbacks of pretrain() as interfaces: dataset provider, model provider, model type,
// forward step. A registry holds them by name; a spec names them; a plugin (plugin.h) adds a user's
// own.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/spec/job_spec.h"
#include "common/spec/spec_json.h"
#include "worker/data/batch.h"
#include "worker/model/model_chunk.h"
#include "worker/parallel/parallel_context.h"
#include "worker/parallel/parameter.h"
#include "worker/parallel/rng.h"

namespace muster {

enum class ModelType { kEncoderOrDecoder };

class ModelProvider {
 public:
  virtual ~ModelProvider() = default;
  virtual ModelType model_type() const { return ModelType::kEncoderOrDecoder; }
  virtual absl::StatusOr<std::unique_ptr<ModelChunk>> Build(const ModelBuildContext& context) = 0;
};

// A result that shall be validated (reference 13.2). When `rejected` says so of it, the step is run
// again from the same data and random numbers, and the two values are compared; rerun.mode says
// whether.
struct ProviderCheck {
  std::string message;  // what is wrong then: "activation norm too large"; the same in every run
  at::Tensor result;    // one element; read once the step's passes are done
  std::function<bool(double)> rejected;
  double tolerance = 0;  // |a - b| / |a + b| * 2 up to which two runs are the same
  bool fatal = true;     // if not, training goes on with what the second run gave
};

// What a loss function returns (reference 5.1): the sum, the number of tokens it is over, and what
// is reported.
struct LossResult {
  at::Tensor loss_sum;    // scalar with gradient
  at::Tensor num_tokens;  // scalar int64
  // key -> [sum, count] (2 elements, reduced over dp_cp) or [value] (1 element, local), fp32, no
  // gradient.
  std::map<std::string, at::Tensor> reported;
  std::vector<ProviderCheck> checks;  // in training steps
};
using LossFunction = std::function<LossResult(const at::Tensor& output)>;

struct ForwardStepResult {
  at::Tensor output;                  // what the chunk returned
  LossFunction loss_function;         // called on the last stage only
  std::vector<ProviderCheck> checks;  // on any stage, in training steps
};

class ForwardStep {
 public:
  virtual ~ForwardStep() = default;
  // Reads one microbatch (where this stage needs one) and runs the chunk.
  virtual absl::StatusOr<ForwardStepResult> Run(DataIterator& data, ModelChunk& model,
                                                const at::Tensor& input) = 0;
};

struct DatasetRequest {
  const JobSpec& spec;
  const ResolvedSpec& sizes;
  // Samples wanted of train, valid, test (reference 10.5); nullopt: one epoch (full validation).
  std::optional<int64_t> train_samples, valid_samples, test_samples;
  bool build_cache = true;  // rank 0 builds index caches; the others wait at a barrier and map them
};
struct Datasets {
  std::shared_ptr<const Dataset> train, valid, test;  // null: no such split
};
class DatasetProvider {
 public:
  virtual ~DatasetProvider() = default;
  virtual absl::StatusOr<Datasets> Build(const DatasetRequest& request) = 0;
};

class ProviderRegistry {
 public:
  // ALREADY_EXISTS for a name taken.
  absl::Status AddModelProvider(const std::string& name, std::shared_ptr<ModelProvider> provider);
  absl::Status AddForwardStep(const std::string& name, std::shared_ptr<ForwardStep> step);
  absl::Status AddDatasetProvider(const std::string& name,
                                  std::shared_ptr<DatasetProvider> provider);
  // NOT_FOUND names the known ones and the nearest.
  absl::StatusOr<std::shared_ptr<ModelProvider>> model_provider(const std::string& name) const;
  absl::StatusOr<std::shared_ptr<ForwardStep>> forward_step(const std::string& name) const;
  absl::StatusOr<std::shared_ptr<DatasetProvider>> dataset_provider(const std::string& name) const;

 private:
  std::map<std::string, std::shared_ptr<ModelProvider>> models_;
  std::map<std::string, std::shared_ptr<ForwardStep>> steps_;
  std::map<std::string, std::shared_ptr<DatasetProvider>> datasets_;
};

}  // namespace muster
